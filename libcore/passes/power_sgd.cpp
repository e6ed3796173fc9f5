#include "libcore/passes/power_sgd.h"

#include <algorithm>
#include <numbers>

#include "libcore/ops/binary.h"
#include "libcore/ops/collective.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/orthonormal.h"
#include "libcore/ops/random.h"
#include "libcore/ops/reduce.h"
#include "libcore/ops/shape.h"
#include "libcore/ops/unary.h"
#include "libcore/ops/update.h"
#include "libcore/passes/collective_nodes.h"

namespace galley {
namespace {

constexpr int64_t kFirstStream = 1 << 20;  // of random numbers; layers have the lower ones

TensorType matrix_type(int64_t rows, int64_t columns) {
  TensorType type;
  type.dtype = DType::kF32;
  type.shape = Shape{rows, columns};
  return type;
}

}  // namespace

bool is_hook_state(std::string_view name) { return name.ends_with(kPowerSgdFactor) || name.ends_with(kPowerSgdError); }

std::optional<FactorSizes> factor_sizes(const TensorType& gradient, int64_t rank) {
  if (gradient.shape.rank() < 2 || gradient.dtype != DType::kF32 || gradient.shape.elements() == 0) return std::nullopt;
  FactorSizes sizes{.rows = gradient.shape[0], .columns = gradient.shape.elements() / gradient.shape[0], .rank = rank};
  if (rank * (sizes.rows + sizes.columns) >= sizes.rows * sizes.columns) return std::nullopt;
  return sizes;
}

PowerSgdBucket::PowerSgdBucket(Graph& graph, const PowerSgd& options, std::string name, const std::vector<std::string>& parameters,
                               const std::vector<Value>& gradients, int after, int64_t place)
    : graph_(graph), options_(options), first_name_(name + ".p"), second_name_(std::move(name) + ".q") {
  const CollectiveScope scope(graph, Phase::kBackward);
  const size_t first = graph.nodes().size();
  std::vector<Value> factors;
  std::vector<int64_t> at;
  for (size_t i = 0; i < gradients.size(); ++i) {
    Member& member = members_.emplace_back();
    member.sizes = *factor_sizes(gradients[i].type(), options.rank);
    member.shape = gradients[i].shape();
    const auto& [rows, columns, rank] = member.sizes;
    member.matrix = reshape(gradients[i], {rows, columns});
    const auto add_state = [&](std::string_view suffix, const TensorType& type, bool own) {
      states_.push_back({parameters[i] + std::string(suffix), type, parameters[i], own});
      return graph.add_input(states_.back().name, type, ValueRole::kState);
    };
    if (options.error_feedback) {
      member.error = add_state(kPowerSgdError, member.matrix.type(), true);
      member.matrix = add(member.error, member.matrix);
    }
    Value q;
    if (options.warm_start) {
      q = member.q = add_state(kPowerSgdFactor, matrix_type(columns, rank), false);
    } else {
      q = random_factor(member.sizes, place + static_cast<int64_t>(i));
    }
    factors.push_back(matmul(member.matrix, q));
    member.p_at = p_elements_;
    member.q_at = q_elements_;
    at.push_back(p_elements_);
    p_elements_ += rows * rank;
    q_elements_ += columns * rank;
  }
  started_ = all_reduce_start(flat_array(graph, factors, at, DType::kF32, p_elements_), first_name_);
  move_nodes(graph, first, after);
}

/// Normal random numbers of this step (Box-Muller), equal on all ranks.
Value PowerSgdBucket::random_factor(const FactorSizes& sizes, int64_t place) const {
  const ValueId step = graph_.find_input("step");
  GALLEY_ASSERT(step != kNoValue);
  const auto constant = [&](int64_t value) { return full(graph_, flat_type(DType::kI64, 1), static_cast<double>(value)); };
  const Value rng = concat({constant(options_.seed), reshape(graph_.at(step), Shape{1}), constant(0)}, 0);
  const auto uniform = [&](int64_t stream) {  // in (0, 1]
    RandomBitsAttrs attrs;
    attrs.shape = {sizes.columns, sizes.rank};
    attrs.stream = stream;
    return affine(cast(random_bits(rng, attrs), DType::kF32), 0x1p-32, 0x1p-33);
  };
  const int64_t stream = kFirstStream + 2 * place;
  const Value radius = sqrt(affine(log(clamp(uniform(stream), 0x1p-33, 1)), -2));
  return mul(radius, cos(affine(uniform(stream + 1), 2 * std::numbers::pi)));
}

void PowerSgdBucket::start_second() {
  const CollectiveScope scope(graph_, Phase::kBackward);
  const Value sum = all_reduce_wait(started_, first_name_);
  std::vector<Value> factors;
  std::vector<int64_t> at;
  for (Member& member : members_) {
    const auto& [rows, columns, rank] = member.sizes;
    member.p = orthonormal_columns(tensor_of(sum, member.p_at, Shape{rows, rank}));
    factors.push_back(matmul(member.matrix, member.p, {true, false}));
    at.push_back(member.q_at);
  }
  started_ = all_reduce_start(flat_array(graph_, factors, at, DType::kF32, q_elements_), second_name_);
}

std::vector<Value> PowerSgdBucket::finish() {
  const CollectiveScope scope(graph_, Phase::kBackward);
  const Value factors = all_reduce_wait(started_, second_name_);
  std::vector<Value> sums;
  for (const Member& member : members_) {
    const auto& [rows, columns, rank] = member.sizes;
    const Value q = tensor_of(factors, member.q_at, Shape{columns, rank});
    const Value product = matmul(member.p, q, {false, true});
    graph_.set_phase(Phase::kUpdate);
    if (member.error) assign(member.error, sub(member.matrix, affine(product, 1 / static_cast<double>(options_.ranks))));
    // A column without gradient would stay zero: it keeps its direction.
    if (member.q) assign(member.q, where(greater(sum(square(q), {0}, true), full(graph_, matrix_type(1, rank), 0)), q, member.q));
    graph_.set_phase(Phase::kBackward);
    sums.push_back(reshape(product, member.shape));
  }
  return sums;
}

}  // namespace galley
