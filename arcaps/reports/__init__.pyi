from .analysis import analyze_run as analyze_run
from .markdown import put_section as put_section
from .markdown import render_section as render_section
from .run import write_report as write_report
