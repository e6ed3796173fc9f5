#pragma once
// The layout doctor: where a recipe's model loses channels_last, why, and what each memory format costs. Used by galley-convert-layout
// --check.

#include <cstdint>
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

/// One kind of work in one memory format.
struct LayoutCost {
  std::string what, format;            // "forward", "train_step"; "contiguous", "channels_last", "auto"
  int64_t reorders = 0, interior = 0;  // of activations; of them between images
  int64_t planned_bytes = 0;
  Summary time;      // of one run
  double speed = 0;  // contiguous time over this one
  double reorder_us = 0;
};

/// A reorder of an activation.
struct LayoutLoss {
  std::string what, memory_format;  // as above
  std::string module, op, from, to, reason;
  Shape shape, from_strides, to_strides;
  int64_t bytes = 0;
  double us = 0;
  bool interior = false;
};

/// An image of the program in the format "auto": what a node makes, or what is fed.
struct LayoutImage {
  std::string what, module, op, phase;
  Shape shape;
  std::string format;
};

/// A convolution that is faster contiguous.
struct ContiguousConvolution {
  std::string what, module, op;
  double contiguous_us = 0, channels_last_us = 0;
};

struct LayoutCheck {
  bool measured = false;
  std::vector<LayoutCost> costs;
  std::vector<LayoutLoss> losses;  // of channels_last and of auto
  std::vector<LayoutImage> images;
  std::vector<ContiguousConvolution> convolutions;
  std::string best;  // the fastest format of the last kind of work: training, where the recipe trains; "" where nothing was measured

  /// Of auto: reorders between images, and those at the edge, where features are flattened or their gradient comes back.
  int64_t interior() const { return count(true); }
  int64_t edge() const { return count(false); }

 private:
  int64_t count(bool interior) const;
};

struct LayoutCheckOptions {
  int64_t batch = 1;
  bool measure = true;  // else the programs are only compiled
  TimerOptions timing;  // its `stop` ends the check
};

/// Compiles forward pass and, where the recipe has an optimizer, update in each memory format, and times them in turns. Nothing where it
/// was stopped.
std::optional<LayoutCheck> check_layouts(const Recipe& recipe, const LayoutCheckOptions& options);

/// {"formats","losses","values","convolutions","interior_reorders","edge_reorders"[,"best"]}
nlohmann::ordered_json layout_json(const LayoutCheck& check);
Table layout_cost_table(const LayoutCheck& check);
/// Reorders in the format auto.
Table layout_loss_table(const LayoutCheck& check);
Table layout_image_table(const LayoutCheck& check);
Table layout_convolution_table(const LayoutCheck& check);
/// "channels_last is kept from input to output ...", in one or two lines.
std::string layout_verdict(const LayoutCheck& check);

}  // namespace galley
