#pragma once
// Which tensor of a weights file goes to which tensor of a model: the rules of the recipe's `weights` section, and the one
// error that explains a misfit. Pure: names, types and shapes only.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libcore/base/shape.h"
#include "libcore/tensor/dtype.h"

namespace galley {

/// A tensor that a model wants: a parameter or a buffer.
struct ExpectedTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};

/// A tensor that a file has.
struct OfferedTensor {
  std::string name;
  std::optional<DType> dtype;  ///< None: a type with which Galley does not compute.
  std::string dtype_text;
  Shape shape;
};

/// One item of the recipe's `weights`: a file and how its names become the model's.
struct LoadRule {
  /// A file (safetensors, PyTorch's .pth, ONNX), a RUN folder (its weights.safetensors), or a checkpoint folder (its parameters and
  /// buffers).
  std::string from;
  /// Patterns over the file's or the model's names: these are not loaded, the model keeps its initial values. `*` and `?` as in
  /// a shell, crossing dots; a module path selects all below it.
  std::vector<std::string> ignore;
  /// {"module.", ""} replaces a prefix, {"fc", "head"} a whole name or a module path, {"*.gamma", "*.weight"} keeps what the one
  /// star stands for. The first that matches a name is applied.
  std::vector<std::pair<std::string, std::string>> rename;
  /// The module of the model below which the file's tensors belong; "" is the whole model.
  std::string into;
  /// Every tensor of the model (below `into`) is filled and every tensor of the file is used.
  bool strict = true;
  /// Allows another dtype in the file (float to float, integer to integer), each value rounded. Wider floats that hold every value
  /// (f16, bf16 to f32) need no leave.
  bool cast = false;
  /// Refuses NaN and infinity.
  bool check_finite = true;
};

struct Match {
  struct Pair {
    size_t expected = 0;
    size_t offered = 0;
  };
  std::vector<Pair> pairs;         ///< Names, shapes and dtypes fit (dtypes may differ where they may be cast).
  std::vector<Pair> misshapen;     ///< The names fit, the shapes do not.
  std::vector<Pair> mistyped;      ///< The names and shapes fit, the dtypes do not.
  std::vector<size_t> ignored;     ///< Of the model, by `ignore`.
  std::vector<size_t> missing;     ///< Of the model, in the rule's scope, not in the file.
  std::vector<size_t> unexpected;  ///< Of the file, used by nothing.
};

/// Applies a rule. Throws Error (exit code 3) where a pattern of `ignore` or `rename` matches nothing, naming near names, or
/// where two names of the file become the same. A `num_batches_tracked` that only one side has is no misfit: it counts, and
/// nothing is computed from it.
Match match_tensors(std::span<const ExpectedTensor> model, std::span<const OfferedTensor> file, const LoadRule& rule);

/// What one rule's misfit looks like: an aligned table of missing, unexpected, misshapen and mistyped tensors, both types of
/// each, near names, and a `rename:` block ready to be pasted where one would help. "" where nothing is wrong.
std::string misfit_report(std::span<const ExpectedTensor> model, std::span<const OfferedTensor> file, const LoadRule& rule,
                          const Match& match);

/// Rules that would map unexpected tensors of the file to missing ones of the model, most useful first.
std::vector<std::pair<std::string, std::string>> propose_renames(std::span<const ExpectedTensor> model, std::span<const OfferedTensor> file,
                                                                 const LoadRule& rule, const Match& match);

/// The name after the first rule of `rename` (LoadRule::rename) that matches it; the name itself where none does.
std::string apply_renames(std::string_view name, const std::vector<std::pair<std::string, std::string>>& rename);

/// Whether a pattern selects a name: `*` any text, `?` one character; a path selects itself and all below it.
bool selects(std::string_view pattern, std::string_view name);

}  // namespace galley
