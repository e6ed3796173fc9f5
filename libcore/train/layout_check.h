#pragma once
// Layout check: where a recipe's model leaves channels_last, why, and what each memory format costs. Used by galley-convert-layout --check.

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "libcore/base/shape.h"
#include "libcore/base/table.h"
#include "libcore/profiler/statistics.h"
#include "libcore/profiler/timer.h"
#include "libcore/recipe/sections.h"

namespace galley {

/// The cost of one kind of work in one memory format.
struct LayoutCost {
  std::string what, format;            ///< "forward", "train_step"; "contiguous", "channels_last", "auto".
  int64_t reorders = 0, interior = 0;  ///< Reorders of activations; those between activations of rank 4 or 5.
  int64_t planned_bytes = 0;
  Summary time;      ///< Of one run.
  double speed = 0;  ///< Time of contiguous divided by this time.
  double reorder_us = 0;
};

/// A reorder of an activation.
struct LayoutLoss {
  std::string what, memory_format;  ///< As in LayoutCost.
  std::string module, op, from, to, reason;
  Shape shape, from_strides, to_strides;
  int64_t bytes = 0;
  double us = 0;
  bool interior = false;
};

/// An activation of rank 4 or 5, which has a memory format, in the program with the format "auto": an output of a node, or an input.
struct LayoutActivation {
  std::string what, module, op, phase;
  Shape shape;
  std::string format;
};

/// A convolution that is faster in the contiguous format.
struct ContiguousConvolution {
  std::string what, module, op;
  double contiguous_us = 0, channels_last_us = 0;
};

/// The result of check_layouts.
struct LayoutCheck {
  bool measured = false;
  std::vector<LayoutCost> costs;
  std::vector<LayoutLoss> losses;  ///< Of the formats channels_last and auto.
  std::vector<LayoutActivation> activations;
  std::vector<ContiguousConvolution> convolutions;
  std::string best;  ///< The fastest format of training, or of inference if the recipe does not train; "" without measurement.

  /// Reorders in the format auto: between activations of rank 4 or 5 (interior), and where features are flattened or their gradient returns
  /// (edge).
  int64_t interior() const { return count(true); }
  int64_t edge() const { return count(false); }

 private:
  int64_t count(bool interior) const;
};

/// Options of check_layouts.
struct LayoutCheckOptions {
  int64_t batch = 1;
  bool measure = true;  ///< False: only compile the programs.
  TimerOptions timing;  ///< Its `stop` also ends the check.
  /// Called before each part of the work, never while something is timed: the finished share, 0 to 1, and what is done next. May be empty.
  std::function<void(double done, const std::string& next)> progress;
};

/// Compiles the forward pass and, if the recipe has an optimizer, the update in each memory format, and times them in turns. Returns
/// nullopt if it was stopped.
std::optional<LayoutCheck> check_layouts(const Recipe& recipe, const LayoutCheckOptions& options);

/// The check as JSON: {"formats","losses","values","convolutions","interior_reorders","edge_reorders"[,"best"]}.
nlohmann::ordered_json layout_json(const LayoutCheck& check);
/// The costs of the formats, one row each.
Table layout_cost_table(const LayoutCheck& check);
/// Reorders in the format auto, one row each.
Table layout_loss_table(const LayoutCheck& check);
/// All activations of rank 4 or 5 with their formats.
Table layout_activation_table(const LayoutCheck& check);
/// Convolutions that are faster in the contiguous format.
Table layout_convolution_table(const LayoutCheck& check);
/// A summary in one or two lines: "channels_last is kept from input to output ...".
std::string layout_verdict(const LayoutCheck& check);

}  // namespace galley
