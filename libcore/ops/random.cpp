#include "libcore/ops/random.h"

#include "libcore/ops/definitions.h"
#include "libcore/ops/gradient.h"
#include "libcore/ops/rules.h"

namespace galley {
namespace {

void check_rng(const TensorType& rng) {
  GALLEY_CHECK(rng.dtype == DType::kI64 && rng.shape == Shape({3}), "rng must be i64 [3] (seed, step, index of sample 0), not ", rng);
}

std::vector<TensorType> infer_masked(const OpContext& c) {
  const TensorType& x = c.in(0);
  check_floating(x, "x");
  GALLEY_CHECK(x.shape.rank() >= 1, "x needs a dimension of samples, but is ", x);
  check_rng(c.in(1));
  return {x};
}

std::vector<TensorType> infer_bits(const OpContext& c) {
  check_rng(c.in(0));
  TensorType y;
  y.dtype = DType::kI64;
  y.shape = Shape(std::span<const int64_t>(c.attrs<RandomBitsAttrs>().shape));
  GALLEY_CHECK(y.shape.rank() >= 1, "the shape needs a dimension for samples");
  return {y};
}

void check_probability(double p) { GALLEY_CHECK(p >= 0 && p <= 1, "the probability p must be in 0..1, not ", p); }

OpDef random_op(std::string_view name, std::string_view doc) {
  return {
      .name = name, .doc = doc, .inputs = {"x", Port::scalar("rng")}, .outputs = {"y"}, .cost = elementwise_cost<1>, .may_reuse = {{0, 0}}};
}

}  // namespace

void DropoutAttrs::options(OptionVisitor& v) {
  v.option({.name = "p", .doc = "drop probability", .min = 0, .max = 1}, p);
  v.option({.name = "stream", .doc = "random stream of the operator: a hash of module path and occurrence"}, stream);
}
void StochasticDepthAttrs::options(OptionVisitor& v) {
  v.option({.name = "p", .doc = "drop probability", .min = 0, .max = 1}, p);
  v.choice({.name = "mode", .doc = "drop single samples (row) or the whole batch (batch)"}, mode, kStochasticDepthModeNames);
  v.option({.name = "stream", .doc = "random stream of the operator: a hash of module path and occurrence"}, stream);
}

void RandomBitsAttrs::options(OptionVisitor& v) {
  v.option({.name = "shape", .doc = "sizes; the first is the number of samples", .min = 0, .required = true}, shape);
  v.option({.name = "stream", .doc = "random stream of the operator: a hash of module path and occurrence"}, stream);
  v.option({.name = "whole_batch", .doc = "one decision for the whole batch instead of one per sample"}, whole_batch);
}

const OpDef& random_bits_op() {
  static const OpDef def{.name = "random_bits",
                         .doc = "random words of 32 bits, as i64 (Philox4x32-10; Salmon et al. 2011)",
                         .inputs = {Port::scalar("rng")},
                         .outputs = {"bits"},
                         .make_attrs = make_options<RandomBitsAttrs>,
                         .infer = infer_bits,
                         .no_gradient = "it has integer inputs",
                         .cost = elementwise_cost<1>,
                         .layout = {FormatRule::kContiguous},
                         .cases = {"random_bits:3@i64:shape=[16,4096]"}};
  return def;
}

const OpDef& dropout_op() {
  static const OpDef def = [] {
    OpDef op = random_op("dropout", "drops elements with probability p, scales the others by 1/(1-p) (Srivastava et al. 2014)");
    op.make_attrs = make_options<DropoutAttrs>;
    op.infer = [](const OpContext& c) {
      check_probability(c.attrs<DropoutAttrs>().p);
      return infer_masked(c);
    };
    op.gradient = [](GradientBuilder& g) {
      if (g.wants(0)) g.set(0, dropout(g.grad(), g.in(1), g.attrs<DropoutAttrs>()));
    };
    op.cases = {"dropout:16x4096+3@i64:p=0.5"};
    op.definition = definition::dropout;
    return op;
  }();
  return def;
}

const OpDef& stochastic_depth_op() {
  static const OpDef def = [] {
    OpDef op =
        random_op("stochastic_depth", "drops whole samples, or the batch, with probability p; scales by 1/(1-p) (Huang et al. 2016)");
    op.make_attrs = make_options<StochasticDepthAttrs>;
    op.infer = [](const OpContext& c) {
      check_probability(c.attrs<StochasticDepthAttrs>().p);
      return infer_masked(c);
    };
    op.gradient = [](GradientBuilder& g) {
      if (g.wants(0)) g.set(0, stochastic_depth(g.grad(), g.in(1), g.attrs<StochasticDepthAttrs>()));
    };
    op.cases = {"stochastic_depth:16x64x56x56+3@i64:p=0.2"};
    op.definition = definition::stochastic_depth;
    return op;
  }();
  return def;
}

Value random_bits(Value rng, const RandomBitsAttrs& attrs) { return emit("random_bits", {rng}, attrs); }
Value dropout(Value x, Value rng, const DropoutAttrs& attrs) { return emit("dropout", {x, rng}, attrs); }
Value stochastic_depth(Value x, Value rng, const StochasticDepthAttrs& attrs) { return emit("stochastic_depth", {x, rng}, attrs); }

OpTable random_ops() { return {&random_bits_op(), &dropout_op(), &stochastic_depth_op()}; }

}  // namespace galley
