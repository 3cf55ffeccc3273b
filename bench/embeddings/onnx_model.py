"""Writes an encoder's GGUF file (F32) as an ONNX graph of plain operators, with mean pooling: what ONNX Runtime is
measured with. Needs numpy, gguf and onnx.

  onnx_model.py MODEL.gguf OUT.onnx
"""
import sys

import gguf
import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save


class Graph:
    def __init__(self, weights):
        self.nodes, self.constants, self.weights, self.count = [], {}, weights, 0

    def constant(self, value):
        name = "c%d" % len(self.constants)
        self.constants[name] = np.asarray(value)
        return name

    def weight(self, name, turned=False):
        value = self.weights[name]
        self.constants[name] = np.ascontiguousarray(value.T) if turned else value
        return name

    def op(self, kind, *inputs, **attributes):
        self.count += 1
        out = "t%d" % self.count
        self.nodes.append(helper.make_node(kind, list(inputs), [out], **attributes))
        return out

    def linear(self, x, name):
        return self.op("Add", self.op("MatMul", x, self.weight(name + ".weight", True)), self.weight(name + ".bias"))

    def norm(self, x, name):
        return self.op("LayerNormalization", x, self.weight(name + ".weight"), self.weight(name + ".bias"),
                       axis=-1, epsilon=1e-12)


def build(path):
    reader = gguf.GGUFReader(path)
    weights = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(t.shape[::-1])
               for t in reader.tensors}
    number = lambda key: reader.fields["bert." + key].contents()  # noqa: E731
    width, heads, layers = number("embedding_length"), number("attention.head_count"), number("block_count")
    g = Graph(weights)
    zero, one, two = (g.constant(np.int64(i)) for i in range(3))
    length = g.op("Gather", g.op("Shape", "ids"), one)
    positions = g.op("Gather", g.weight("position_embd.weight"), g.op("Range", zero, length, one))
    x = g.op("Add", g.op("Gather", g.weight("token_embd.weight"), "ids"), g.constant(weights["token_types.weight"][0]))
    x = g.norm(g.op("Add", x, positions), "token_embd_norm")
    mask = g.op("Cast", "mask", to=TensorProto.FLOAT)
    wide = g.op("Unsqueeze", g.op("Unsqueeze", mask, one), one)
    bias = g.op("Mul", g.op("Sub", wide, g.constant(np.float32(1))), g.constant(np.float32(1e9)))
    split = g.constant(np.array([0, 0, heads, width // heads], np.int64))
    joined = g.constant(np.array([0, 0, width], np.int64))
    for layer in range(layers):
        block = "blk.%d." % layer
        q, k, v = (g.op("Transpose", g.op("Reshape", g.linear(x, block + "attn_" + part), split),
                        perm=[0, 2, 3, 1] if part == "k" else [0, 2, 1, 3]) for part in "qkv")
        q = g.op("Mul", q, g.constant(np.float32((width // heads) ** -0.5)))
        weight = g.op("Softmax", g.op("Add", g.op("MatMul", q, k), bias), axis=-1)
        attended = g.op("Reshape", g.op("Transpose", g.op("MatMul", weight, v), perm=[0, 2, 1, 3]), joined)
        x = g.norm(g.op("Add", x, g.linear(attended, block + "attn_output")), block + "attn_output_norm")
        up = g.linear(x, block + "ffn_up")
        erf = g.op("Erf", g.op("Div", up, g.constant(np.float32(2 ** 0.5))))
        gelu = g.op("Mul", g.op("Mul", up, g.op("Add", erf, g.constant(np.float32(1)))), g.constant(np.float32(0.5)))
        x = g.norm(g.op("Add", x, g.linear(gelu, block + "ffn_down")), block + "layer_output_norm")
    column = g.op("Unsqueeze", mask, two)
    axis = g.constant(np.array([1], np.int64))
    mean = g.op("Div", g.op("ReduceSum", g.op("Mul", x, column), axis, keepdims=0),
                g.op("ReduceSum", column, axis, keepdims=0))
    g.nodes.append(helper.make_node("Identity", [mean], ["embedding"]))
    ints = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in ("ids", "mask")]
    out = [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", width])]
    constants = [numpy_helper.from_array(np.asarray(v), k) for k, v in g.constants.items()]
    model = helper.make_model(helper.make_graph(g.nodes, "encoder", ints, out, constants),
                              opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    return model


if __name__ == "__main__":
    save(build(sys.argv[1]), sys.argv[2])
