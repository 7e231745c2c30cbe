"""``python -m workbook``."""

from .cli import main

main()
