"""A model at many batch sizes, shapes, precisions and numbers of streams."""
