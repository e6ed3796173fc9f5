#pragma once
// What names and opcodes of a pickle mean to pickle.cpp: the list of names that are data. Everything that is not here is refused.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "libcore/weights/pickle.h"

namespace galley {

enum class PickleGlobal : uint8_t {
  kOrderedDict,
  kCounter,
  kNamespace,              ///< argparse.Namespace: the arguments that training scripts store beside the weights.
  kRebuildTensor,          ///< (storage, offset, size, stride)
  kRebuildTensorV2,        ///< (storage, offset, size, stride, requires_grad, hooks, [metadata])
  kRebuildTensorV3,        ///< (storage, offset, size, stride, requires_grad, hooks, dtype, [metadata])
  kRebuildParameter,       ///< (tensor, requires_grad, hooks)
  kRebuildParameterState,  ///< (tensor, requires_grad, hooks, state)
  kSize,
  kDevice,
  kEncode,  ///< Bytes in protocol 2, as a Latin-1 text.
  kSet,
  kByteArray,
  kStorageType,  ///< With a TorchType.
  kUntypedStorage,
};

struct KnownGlobal {
  PickleGlobal global;
  const TorchType* type = nullptr;
};

/// The meaning of module.name, none where it is not on the list; a dtype object (torch.float32) is told by `type_of_name`.
std::optional<KnownGlobal> known_global(std::string_view module, std::string_view name);
std::span<const TorchType> torch_types();
/// The type that torch.NAME is, or null.
const TorchType* type_of_name(std::string_view name);
/// For a refused name: why files hold it and what to do instead.
std::string advice_on_global(std::string_view module, std::string_view name);
/// "INST (0x69)"
std::string opcode_name(uint8_t opcode);

}  // namespace galley
