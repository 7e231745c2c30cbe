"""Executes a notebook in place, the way it is committed: its outputs, its tags, and nothing of this run or machine.

jupyter nbconvert --config notebooks/nbconvert_config.py notebooks/01_attention.ipynb
"""

from nbconvert.preprocessors import Preprocessor

WIDGET = "application/vnd.jupyter.widget-view+json"


class StaticWidgets(Preprocessor):
    """Leave a widget's text only: its view needs a state that is not committed."""

    def preprocess_cell(self, cell, resources, index):
        """Drop the view from the outputs of one cell."""
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET, None)
        return cell, resources


c = get_config()  # noqa: F821 - nbconvert provides it

c.NbConvertApp.export_format = "notebook"
c.NbConvertApp.use_output_suffix = False
c.FilesWriter.build_directory = ""  # beside the source: in place
c.NotebookExporter.preprocessors = [StaticWidgets]
c.ExecutePreprocessor.enabled = True
c.ExecutePreprocessor.timeout = 600
c.ExecutePreprocessor.kernel_name = "python3"
c.ExecutePreprocessor.record_timing = False
c.ClearMetadataPreprocessor.enabled = True
c.ClearMetadataPreprocessor.preserve_cell_metadata_mask = {"tags", "jupyter"}
c.ClearMetadataPreprocessor.preserve_nb_metadata_mask = {"kernelspec", ("language_info", "name")}
