#include "libcore/dist/transformer.h"

#include <algorithm>

#include "libcore/base/error.h"

namespace galley {
namespace {

constexpr double kElement = 2;  // bytes of an activation
// Flash attention of head dimensions 64 to 128 reaches half of what large products do.
constexpr double kFlashExtent = 256;

struct Sizes {
  double h, kv, f, a, s, v, t, tokens;
};

Sizes sizes_of(const TransformerShape& shape, const TransformerRun& run) {
  const auto h = static_cast<double>(shape.hidden);
  const int64_t kv_heads = shape.kv_heads > 0 ? shape.kv_heads : shape.heads;
  return {.h = h,
          .kv = h * static_cast<double>(kv_heads) / static_cast<double>(shape.heads),
          .f = shape.ffn > 0 ? static_cast<double>(shape.ffn) : 4 * h,
          .a = static_cast<double>(shape.heads),
          .s = static_cast<double>(shape.sequence),
          .v = static_cast<double>(shape.vocabulary),
          .t = static_cast<double>(run.tensor),
          .tokens = static_cast<double>(run.micro_batch * shape.sequence)};
}

/// Bytes of a layer's activations on one rank, all of them (`scores`: without flash).
double layer_bytes(const TransformerShape& shape, const TransformerRun& run, const Sizes& z) {
  if (!shape.gated) {
    const GptLayer layer{.tokens = z.tokens, .hidden = z.h, .heads = z.a, .sequence = z.s};
    const auto policy = run.flash ? ActivationPolicy::kSelective : ActivationPolicy::kKeep;
    return gpt_layer_activation_bytes(layer, policy, run.tensor, run.sequence_parallel);
  }
  // Input, norms, residual and output of projections; q and attention on heads; k, v and rotated k; gate, up, silu and product.
  const double outside = 5 * z.h, inside = 4 * z.h + 3 * z.kv + 4 * z.f;
  return kElement * z.tokens * (outside / (run.sequence_parallel ? z.t : 1) + inside / z.t);
}

/// Bytes that a layer keeps from the forward to the backward pass.
double kept_layer_bytes(const TransformerShape& shape, const TransformerRun& run, const Sizes& z) {
  const double input = kElement * z.tokens * z.h / (run.sequence_parallel ? z.t : 1);
  switch (run.recompute) {
    case Recomputation::kNone: return layer_bytes(shape, run, z);
    case Recomputation::kFull: return input;
    case Recomputation::kAttentionCore: {
      const GptLayer layer{.tokens = z.tokens, .hidden = z.h, .heads = z.a, .sequence = z.s};
      return gpt_layer_activation_bytes(layer, ActivationPolicy::kSelective, run.tensor, run.sequence_parallel);
    }
    case Recomputation::kOperators: {
      // Products in order: q, k, v, output, gate, up, down. The first, third, fifth and seventh are kept, the last one in vain: its only
      // reader is an addition. Attention is kept too.
      const double kept = z.h + z.kv + z.f + (run.compiled ? 0 : z.h) + z.h;
      return input + kElement * z.tokens * kept / z.t;
    }
  }
  return 0;
}

/// The forward work of a layer: products, attention, and kernels that are bound by memory.
std::vector<Operation> layer_work(const TransformerShape& shape, const TransformerRun& run, const Sizes& z) {
  const double matrices = 2 * z.tokens * shape.layer_parameters() / z.t, attention = 4 * z.tokens * z.s * z.h / z.t;
  const double extent = std::min(z.tokens, z.h / z.t);
  std::vector<Operation> work;
  const double dense = matrices + (run.flash ? 0 : attention);
  work.push_back({.flops = dense, .executed = dense, .extent = extent, .dtype = run.dtype});
  if (run.flash) work.push_back({.flops = attention, .executed = attention / 2, .extent = kFlashExtent, .dtype = DType::kBF16});
  work.push_back({.bytes = run.passes * layer_bytes(shape, run, z)});
  return work;
}

std::vector<Operation> times(std::vector<Operation> work, double factor) {
  for (Operation& operation : work) {
    operation.flops *= factor;
    operation.executed *= factor;
    operation.bytes *= factor;
  }
  return work;
}

void append(std::vector<Operation>& to, const std::vector<Operation>& from) { to.insert(to.end(), from.begin(), from.end()); }

/// What the backward pass of a layer computes again.
std::vector<Operation> recomputed_work(const TransformerShape& shape, const TransformerRun& run, const Sizes& z) {
  std::vector<Operation> forward = layer_work(shape, run, z);
  switch (run.recompute) {
    case Recomputation::kNone: return {};
    case Recomputation::kFull: return forward;
    case Recomputation::kAttentionCore: {
      const double attention = 4 * z.tokens * z.s * z.h / z.t;
      return {{.flops = attention, .executed = attention, .extent = std::min(z.tokens, z.h / z.t), .dtype = run.dtype},
              {.bytes = run.passes * 5 * z.a * z.s * z.tokens / z.t}};
    }
    case Recomputation::kOperators: {
      const double products = 2 * z.tokens * (z.h * z.kv + z.h * z.h + z.h * z.f) / z.t;  // k, output, up
      return {{.flops = products, .executed = products, .extent = std::min(z.tokens, z.h / z.t), .dtype = run.dtype}, forward.back()};
    }
  }
  return {};
}

/// Units of the embedding (with the head where it is tied), the layers and the head, with their parameters.
void add_units(const TransformerShape& shape, const TransformerRun& run, const Sizes& z, PlanModel& model) {
  const auto count = [&](double elements) { return static_cast<int64_t>(elements / z.t); };
  const auto add = [&](const std::string& name, double elements, std::vector<double> parts) {
    Unit unit{.name = name};
    const bool apart = std::any_of(parts.begin(), parts.end(), [&](double part) { return part >= run.block_parameters; });
    if (apart) {
      for (const double part : parts) unit.parts.push_back(count(part));
    }
    model.parameters.push_back({.name = name, .elements = count(elements), .unit = static_cast<int>(model.units.size())});
    model.units.push_back(std::move(unit));
  };
  add("embedding", z.v * z.h, {});
  const std::vector<double> parts = shape.gated ? std::vector<double>{z.h * z.h, 2 * z.h * z.kv, z.h * z.h, z.h * z.f, z.h * z.f, z.h * z.f}
                                                : std::vector<double>{3 * z.h * z.h, z.h * z.h, z.h * z.f, z.h * z.f};
  for (int64_t i = 0; i < shape.layers; ++i) add(cat("h.", i), shape.layer_parameters(), parts);
  if (!shape.tied) add("head", z.v * z.h, {});
}

/// Fills the segments' memory: what is kept by earlier segments, and the working set.
void add_live_bytes(PlanModel& model, double working, double logits) {
  double kept = model.input_bytes;
  for (size_t i = 0; i < model.forward.size(); ++i) {
    PlanSegment& segment = model.forward[i];
    kept += segment.kept_bytes;
    segment.live_bytes = kept + (i + 1 == model.forward.size() ? logits : i > 0 ? working - segment.kept_bytes : 0);
  }
  for (PlanSegment& segment : model.backward) {
    const auto of = static_cast<size_t>(segment.forward);
    const PlanSegment& forward = model.forward[of];
    segment.live_bytes = kept + (of + 1 == model.forward.size() ? logits
                                 : of > 0                       ? working + 2 * forward.output_bytes - forward.kept_bytes
                                                                : 0);
    kept -= forward.kept_bytes;
  }
}

}  // namespace

double TransformerShape::layer_parameters() const {
  const auto h = static_cast<double>(hidden), f = ffn > 0 ? static_cast<double>(ffn) : 4 * h;
  const double kv = h * static_cast<double>(kv_heads > 0 ? kv_heads : heads) / static_cast<double>(heads);
  return 2 * h * h + 2 * h * kv + (gated ? 3 : 2) * h * f;
}

double TransformerShape::parameters() const {
  return static_cast<double>(layers) * layer_parameters() + (tied ? 1 : 2) * static_cast<double>(vocabulary * hidden);
}

PlanModel transformer_model(const TransformerShape& shape, const TransformerRun& run) {
  const Sizes z = sizes_of(shape, run);
  PlanModel model;
  model.name = "transformer";
  model.bytes = run.bytes;
  model.gather_bytes = run.bytes.parameter == 4 ? 2 : run.bytes.parameter;
  model.reduce_bytes = run.reduce_bytes;
  model.samples = static_cast<double>(run.micro_batch);
  model.tokens = z.tokens;
  model.dtype = run.dtype;
  add_units(shape, run, z, model);

  const std::vector<Operation> layer = layer_work(shape, run, z), again = recomputed_work(shape, run, z);
  const double boundary = kElement * z.tokens * z.h / (run.sequence_parallel ? z.t : 1);
  const double reduced = kElement * z.tokens * z.h;
  const int reductions = run.tensor > 1 ? 2 : 0;
  model.forward.push_back({.name = "embedding", .unit = 0, .work = {}, .kept_bytes = 0, .output_bytes = boundary});
  std::vector<Operation> backward = times(layer, 2);
  append(backward, again);
  for (int64_t i = 0; i < shape.layers; ++i) {
    model.forward.push_back({.name = cat("h.", i),
                             .unit = static_cast<int>(i + 1),
                             .work = layer,
                             .kept_bytes = kept_layer_bytes(shape, run, z),
                             .output_bytes = boundary,
                             .reduced_bytes = reduced,
                             .reductions = reductions});
  }
  const double head = 2 * z.tokens * z.h * z.v / z.t;
  const std::vector<Operation> head_work{{.flops = head,
                                          .executed = head,
                                          .extent = std::min(z.tokens, z.h / z.t),
                                          .dtype = run.dtype == DType::kI8 ? DType::kBF16 : run.dtype},
                                         {.bytes = 6 * z.tokens * z.v / z.t}};
  const int head_unit = shape.tied ? 0 : static_cast<int>(model.units.size()) - 1;
  model.forward.push_back({.name = "head", .unit = head_unit, .work = head_work});
  for (size_t i = model.forward.size(); i-- > 0;) {
    const bool is_head = i + 1 == model.forward.size(), is_layer = i > 0 && !is_head;
    const bool whole = run.recompute == Recomputation::kFull;
    model.backward.push_back({.name = model.forward[i].name,
                              .unit = model.forward[i].unit,
                              .work = is_head    ? times(head_work, 2)
                                      : is_layer ? backward
                                                 : std::vector<Operation>(),
                              .reduced_bytes = reduced,
                              .reductions = is_layer ? reductions * (whole ? 2 : 1) : 0,
                              .forward = static_cast<int>(i)});
  }
  add_live_bytes(model, layer_bytes(shape, run, z), z.tokens * z.v / z.t * run.logit_bytes);

  const auto sum = [](const std::vector<Operation>& work) {
    double flops = 0;
    for (const Operation& operation : work) flops += operation.flops;
    return flops;
  };
  model.model_flops = 3 * (static_cast<double>(shape.layers) * sum(layer) + sum(head_work));
  model.flops = model.model_flops + static_cast<double>(shape.layers) * sum(again);
  // The update reads gradients and state and writes state and parameters, once each.
  const double touched = static_cast<double>(run.bytes.parameter + run.bytes.gradient + run.bytes.optimizer);
  model.update = {{.bytes = touched * static_cast<double>(model.trained_elements())}};
  return model;
}

}  // namespace galley
