"""ONNX file to engines: precision selection, engines, rebuild and repair, timing-cache choice."""
