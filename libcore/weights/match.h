#pragma once
// Matches the tensors of a weights file to the tensors of a model by the rules of the recipe's `weights` section, and reports all
// mismatches in one error. Pure: uses only names, types and shapes.

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libcore/base/shape.h"
#include "libcore/tensor/dtype.h"

namespace galley {

/// A tensor of the model: a parameter or a buffer.
struct ExpectedTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};

/// A tensor of the file.
struct OfferedTensor {
  std::string name;
  std::optional<DType> dtype;  ///< nullopt for types that Galley does not support.
  std::string dtype_text;
  Shape shape;
};

/// One item of the recipe's `weights`: a file and how its names map to the model's.
struct LoadRule {
  /// A file (safetensors, PyTorch's .pth, ONNX), a RUN folder (its weights.safetensors), a checkpoint folder (its parameters and buffers),
  /// or a hub folder, whose names are first made the model's (weights/hub.h).
  std::string from;
  /// Patterns of names, in the file or the model, that are not loaded; the model keeps its initial values. `*` and `?` as in a shell, but
  /// matching dots; a module path selects everything below it.
  std::vector<std::string> ignore;
  /// {"module.", ""} replaces a prefix, {"fc", "head"} a whole name or a module path, {"*.gamma", "*.weight"} keeps the text that `*`
  /// matches (at most one `*`). The first rule that matches a name is applied.
  std::vector<std::pair<std::string, std::string>> rename;
  /// The module of the model into which the file's tensors are loaded; "": the whole model.
  std::string into;
  /// Requires that every tensor of the model (below `into`) is filled and every tensor of the file is used.
  bool strict = true;
  /// Allows another dtype in the file (float to float, integer to integer), rounding each value. Casts to wider floats (f16, bf16 to f32)
  /// are always allowed.
  bool cast = false;
  /// Rejects NaN and infinity.
  bool check_finite = true;
  /// Says how the model of the file differs from this one, in whole lines, or "" if that is unknown. Called if shapes do not fit.
  std::function<std::string()> difference = nullptr;
};

/// The result of applying a rule; indices into the lists of the model (expected) and the file (offered).
struct Match {
  struct Pair {
    size_t expected = 0;
    size_t offered = 0;
  };
  std::vector<Pair> pairs;         ///< Names, shapes and dtypes match (dtypes may differ if a cast is allowed).
  std::vector<Pair> misshapen;     ///< Names match, shapes do not.
  std::vector<Pair> mistyped;      ///< Names and shapes match, dtypes do not.
  std::vector<size_t> ignored;     ///< Tensors of the model selected by `ignore`.
  std::vector<size_t> missing;     ///< Tensors of the model in the rule's scope that are not in the file.
  std::vector<size_t> unexpected;  ///< Unused tensors of the file.
};

/// Applies a rule. Throws Error (exit code 3) with similar names if a pattern of `ignore` or `rename` matches nothing, or if two names of
/// the file become equal. Names of older detectors (old_names.h) match the present ones. A `num_batches_tracked` that only one side has is
/// not a mismatch: it only counts, and nothing is computed from it.
Match match_tensors(std::span<const ExpectedTensor> model, std::span<const OfferedTensor> file, const LoadRule& rule);

/// Describes the mismatches of one rule: an aligned table of missing, unexpected, misshapen and mistyped tensors with their types and
/// similar names, and a `rename:` block to paste if one would help. "" if there are none.
std::string misfit_report(std::span<const ExpectedTensor> model, std::span<const OfferedTensor> file, const LoadRule& rule,
                          const Match& match);

/// Renames that would map unexpected tensors of the file to missing ones of the model, most useful first.
std::vector<std::pair<std::string, std::string>> propose_renames(std::span<const ExpectedTensor> model, std::span<const OfferedTensor> file,
                                                                 const LoadRule& rule, const Match& match);

/// The name after the first matching rule of `rename` (LoadRule::rename); the name itself if none matches.
std::string apply_renames(std::string_view name, const std::vector<std::pair<std::string, std::string>>& rename);

/// Whether a pattern selects a name: `*` matches any text, `?` one character; a path selects itself and everything below it.
bool selects(std::string_view pattern, std::string_view name);

}  // namespace galley
