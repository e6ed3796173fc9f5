#include "libcore/weights/pickle_globals.h"

#include <array>

#include "libcore/base/error.h"

namespace galley {
namespace {

constexpr std::array<TorchType, 24> kTypes{{
    {"FloatStorage", "float32", "F32", 4, DType::kF32},
    {"DoubleStorage", "float64", "F64", 8, DType::kF64},
    {"HalfStorage", "float16", "F16", 2, DType::kF16},
    {"BFloat16Storage", "bfloat16", "BF16", 2, DType::kBF16},
    {"LongStorage", "int64", "I64", 8, DType::kI64},
    {"IntStorage", "int32", "I32", 4, DType::kI32},
    {"ShortStorage", "int16", "I16", 2, DType::kI16},
    {"CharStorage", "int8", "I8", 1, DType::kI8},
    {"ByteStorage", "uint8", "U8", 1, DType::kU8},
    {"BoolStorage", "bool", "BOOL", 1, DType::kBool},
    {"ComplexFloatStorage", "complex64", "C64", 8, {}},
    {"ComplexDoubleStorage", "complex128", "C128", 16, {}},
    {"", "complex32", "C32", 4, {}},
    {"", "uint16", "U16", 2, {}},
    {"", "uint32", "U32", 4, {}},
    {"", "uint64", "U64", 8, {}},
    {"", "float8_e4m3fn", "F8_E4M3", 1, {}},
    {"", "float8_e5m2", "F8_E5M2", 1, {}},
    {"", "float8_e4m3fnuz", "F8_E4M3FNUZ", 1, {}},
    {"", "float8_e5m2fnuz", "F8_E5M2FNUZ", 1, {}},
    {"", "float8_e8m0fnu", "F8_E8M0", 1, {}},
    {"QInt8Storage", "qint8", "QI8", 1, {}},
    {"QUInt8Storage", "quint8", "QU8", 1, {}},
    {"QInt32Storage", "qint32", "QI32", 4, {}},
}};

struct Name {
  std::string_view module, name;
  PickleGlobal global;
};
constexpr std::array<Name, 16> kNames{{
    {"collections", "OrderedDict", PickleGlobal::kOrderedDict},
    {"collections", "Counter", PickleGlobal::kCounter},
    {"argparse", "Namespace", PickleGlobal::kNamespace},
    {"torch._utils", "_rebuild_tensor", PickleGlobal::kRebuildTensor},
    {"torch._utils", "_rebuild_tensor_v2", PickleGlobal::kRebuildTensorV2},
    {"torch._utils", "_rebuild_tensor_v3", PickleGlobal::kRebuildTensorV3},
    {"torch._utils", "_rebuild_parameter", PickleGlobal::kRebuildParameter},
    {"torch._utils", "_rebuild_parameter_with_state", PickleGlobal::kRebuildParameterState},
    {"torch", "Size", PickleGlobal::kSize},
    {"torch", "device", PickleGlobal::kDevice},
    {"_codecs", "encode", PickleGlobal::kEncode},
    {"builtins", "set", PickleGlobal::kSet},
    {"__builtin__", "set", PickleGlobal::kSet},
    {"builtins", "bytearray", PickleGlobal::kByteArray},
    {"__builtin__", "bytearray", PickleGlobal::kByteArray},
    {"torch.storage", "UntypedStorage", PickleGlobal::kUntypedStorage},
}};

struct Opcode {
  uint8_t code;
  std::string_view name;
};
constexpr std::array<Opcode, 24> kRefusedOpcodes{{
    {'0', "POP"},        {'1', "POP_MARK"},     {'2', "DUP"},
    {'F', "FLOAT"},      {'I', "INT"},          {'L', "LONG"},
    {'P', "PERSID"},     {'S', "STRING"},       {'V', "UNICODE"},
    {'d', "DICT"},       {'g', "GET"},          {'i', "INST"},
    {'o', "OBJ"},        {'p', "PUT"},          {0x82, "EXT1"},
    {0x83, "EXT2"},      {0x84, "EXT4"},        {0x8b, "LONG4"},
    {0x92, "NEWOBJ_EX"}, {0x97, "NEXT_BUFFER"}, {0x98, "READONLY_BUFFER"},
    {0x80, "PROTO"},     {'.', "STOP"},         {'(', "MARK"},
}};

}  // namespace

std::optional<KnownGlobal> known_global(std::string_view module, std::string_view name) {
  for (const Name& known : kNames) {
    if (known.module == module && known.name == name) return KnownGlobal{known.global};
  }
  if (module == "torch" || module == "torch.cuda") {
    for (const TorchType& type : kTypes) {
      if (!type.storage.empty() && type.storage == name) return KnownGlobal{PickleGlobal::kStorageType, &type};
    }
  }
  return std::nullopt;
}

std::span<const TorchType> torch_types() { return kTypes; }

const TorchType* type_of_name(std::string_view name) {
  for (const TorchType& type : kTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

std::string advice_on_global(std::string_view module, std::string_view name) {
  if (module == "torch._utils" && name == "_rebuild_qtensor")
    return "quantized PyTorch tensors are not supported: save the float weights and quantize them with galley-quantize";
  if (module == "torch._utils" && name.starts_with("_rebuild"))
    return "this kind of tensor (sparse, nested, a wrapper) is not supported: save plain tensors";
  if (module.starts_with("numpy")) return "the file contains NumPy values: save them as Python numbers or tensors";
  return "only tensors and plain values are supported: save only the weights with torch.save(model.state_dict(), FILE)";
}

std::string opcode_name(uint8_t opcode) {
  static constexpr char kHex[] = "0123456789abcdef";
  const std::string code = {'0', 'x', kHex[opcode >> 4], kHex[opcode & 15]};
  for (const Opcode& known : kRefusedOpcodes) {
    if (known.code == opcode) return cat(known.name, " (", code, ")");
  }
  return code;
}

}  // namespace galley
