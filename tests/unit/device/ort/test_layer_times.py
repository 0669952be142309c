"""Layer times of ONNX Runtime's profiler."""

import numpy as np

from tests.rewrite_graphs import model
from trtopt.device.ort.layer_times import time_nodes
from trtopt.device.ort.runtime import session_options

LOOP = """
g (float[4] x, int64 trips) => (float[4] y) {
    t = Constant <value = bool {1}> ()
    a = Relu(x)
    y = Loop(trips, t, a) <body = b (int64 i, bool c, float[4] p) => (bool d, float[4] r) {
        d = Identity(c)
        q = Sin(p)
        r = Cos(q)
    }>
}"""


def test_what_runs_inside_a_loop_is_part_of_the_loop() -> None:
    made = model(LOOP)
    for node in (*made.graph.node, *made.graph.node[2].attribute[0].g.node):
        node.name = f"{node.op_type} of {node.output[0]}"
    engine = made.SerializeToString()
    feeds = {"x": np.ones(4, np.float32), "trips": np.array(5)}
    found = time_nodes(engine, session_options(engine), feeds, 7)
    assert {layer.name: len(layer.ms) for layer in found.layers} == {"Relu of a": 7, "Loop of y": 7}
    assert found.runs == 7
