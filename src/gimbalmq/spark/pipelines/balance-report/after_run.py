"""Draws the page from the tables. Run by `gimbalmq pipeline run`, or by hand: python after_run.py"""

from pathlib import Path

import yaml

from gimbalmq.spark.pipelines.page import write_page

HERE = Path(__file__).resolve().parent

settings = yaml.safe_load((HERE / "spark-pipeline.yml").read_text())["configuration"]
print(f"report: {write_page(HERE / 'tables', Path(settings['gimbalmq.page']))}")
