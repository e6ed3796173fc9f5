#pragma once
// The globals and opcode names known to pickle.cpp. All other globals are rejected.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "libcore/weights/pickle.h"

namespace galley {

/// A supported global.
enum class PickleGlobal : uint8_t {
  kOrderedDict,
  kCounter,
  kNamespace,              ///< argparse.Namespace: arguments that training scripts store with the weights.
  kRebuildTensor,          ///< (storage, offset, size, stride)
  kRebuildTensorV2,        ///< (storage, offset, size, stride, requires_grad, hooks, [metadata])
  kRebuildTensorV3,        ///< (storage, offset, size, stride, requires_grad, hooks, dtype, [metadata])
  kRebuildParameter,       ///< (tensor, requires_grad, hooks)
  kRebuildParameterState,  ///< (tensor, requires_grad, hooks, state)
  kSize,
  kDevice,
  kEncode,  ///< Bytes in protocol 2, encoded as a Latin-1 string.
  kSet,
  kByteArray,
  kStorageType,  ///< With its TorchType.
  kUntypedStorage,
};

/// A global, with its element type if it has one.
struct KnownGlobal {
  PickleGlobal global;
  const TorchType* type = nullptr;
};

/// The meaning of module.name; nullopt if it is not supported. Dtype objects (torch.float32) are found by type_of_name.
std::optional<KnownGlobal> known_global(std::string_view module, std::string_view name);
/// All element types of PyTorch.
std::span<const TorchType> torch_types();
/// The type torch.NAME, or nullptr.
const TorchType* type_of_name(std::string_view name);
/// For a rejected global: why files contain it and what to do instead.
std::string advice_on_global(std::string_view module, std::string_view name);
/// "INST (0x69)"
std::string opcode_name(uint8_t opcode);

}  // namespace galley
