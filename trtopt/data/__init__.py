"""DATA: real samples for a model, streamed from wherever the user keeps them.

`open_data(text)` reads an `.npz` with arrays named like the model's inputs, a folder of them, the JSON that
Polygraphy writes, or `module:function` that yields dicts of arrays. Samples lie along the first axis.
"""

from trtopt.data.source import SampleSource, open_data
from trtopt.files.user_code import names_function

__all__ = ["SampleSource", "names_function", "open_data"]
