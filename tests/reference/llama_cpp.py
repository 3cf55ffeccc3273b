"""llama.cpp's own tokenizers, called directly: the wheel xllamacpp exports the library's C functions.

Only a file's vocabulary is opened, so it needs no tensors. The layout of llama_model_params belongs to the
pinned wheel (tests/requirements.txt); what the library fills in by default is checked against it.
"""

import ctypes

import pytest


class ModelParams(ctypes.Structure):
    _fields_ = [
        ("devices", ctypes.c_void_p), ("tensor_buft_overrides", ctypes.c_void_p),
        ("n_gpu_layers", ctypes.c_int32), ("split_mode", ctypes.c_int), ("load_mode", ctypes.c_int),
        ("lazy_mode", ctypes.c_int), ("main_gpu", ctypes.c_int32), ("tensor_split", ctypes.c_void_p),
        ("progress_callback", ctypes.c_void_p), ("progress_callback_user_data", ctypes.c_void_p),
        ("kv_overrides", ctypes.c_void_p), ("vocab_only", ctypes.c_bool), ("check_tensors", ctypes.c_bool),
        ("use_extra_bufts", ctypes.c_bool), ("no_host", ctypes.c_bool), ("no_alloc", ctypes.c_bool),
        ("load_mtp", ctypes.c_bool), ("room", ctypes.c_byte * 256)]


QUIET = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)


def library():
    xllamacpp = pytest.importorskip("xllamacpp")
    lib = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    lib.llama_model_default_params.restype = ModelParams
    lib.llama_model_load_from_file.argtypes = [ctypes.c_char_p, ModelParams]
    lib.llama_model_load_from_file.restype = ctypes.c_void_p
    lib.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
    lib.llama_model_get_vocab.restype = ctypes.c_void_p
    lib.llama_model_free.argtypes = [ctypes.c_void_p]
    lib.llama_tokenize.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32,
                                   ctypes.POINTER(ctypes.c_int32), ctypes.c_int32, ctypes.c_bool, ctypes.c_bool]
    lib.llama_tokenize.restype = ctypes.c_int32
    lib.llama_log_set(QUIET, None)
    return lib


def ids_of(path, lines, special=False, add=False):
    """Token ids of each line (str or bytes)."""
    lib = library()
    params = lib.llama_model_default_params()
    assert params.n_gpu_layers == -1 and not params.kv_overrides and not params.vocab_only
    assert params.use_extra_bufts and not params.check_tensors, "llama_model_params has another layout"
    params.vocab_only = True
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    assert model, "llama.cpp does not open %s" % path
    vocab = lib.llama_model_get_vocab(model)
    found = []
    for line in lines:
        data = line if isinstance(line, bytes) else line.encode()
        capacity = len(data) + 8
        out = (ctypes.c_int32 * capacity)()
        count = lib.llama_tokenize(vocab, data, len(data), out, capacity, add, special)
        assert count >= 0, (count, line)
        found.append(out[:count])
    lib.llama_model_free(model)
    return found
