#include "libcore/train/sharded_state.h"

#include <cstring>

namespace galley {

ShardedState::ShardedState(Communicator& ranks, ParameterStore& store, const std::vector<GradientBucket>& buckets,
                           const std::vector<StateSpec>& states, bool parameters)
    : ranks_(ranks), store_(store) {
  for (const GradientBucket& bucket : buckets) {
    if (!parameters) break;
    ranges_[bucket.state] = list_.size();
    for (size_t m = 0; m < bucket.parameters.size(); ++m) whole_[bucket.parameters[m]] = {list_.size(), m};
    list_.push_back({bucket.state, &bucket});
  }
  for (const StateSpec& state : states) {
    for (const GradientBucket& bucket : buckets) {
      if (state.of != bucket.state) continue;
      ranges_[state.name] = list_.size();
      const std::string suffix = state.name.substr(bucket.state.size());
      for (size_t m = 0; m < bucket.parameters.size(); ++m) {
        order_.push_back(bucket.parameters[m] + suffix);
        whole_[order_.back()] = {list_.size(), m};
      }
      list_.push_back({state.name, &bucket});
    }
  }
}

void ShardedState::set(const std::string& name, const Tensor& values) {
  const Whole& whole = whole_.at(name);
  const Range& range = list_[whole.range];
  const GradientBucket& bucket = *range.bucket;
  GALLEY_CHECK_INPUT(values.dtype() == bucket.dtype && values.shape() == bucket.shapes[whole.member], "the tensor ", name, " is ",
                     dtype_name(values.dtype()), " ", values.shape(), ", not ", dtype_name(bucket.dtype), " ", bucket.shapes[whole.member]);
  set_range(store_.tensor(range.state), bucket, whole.member, values, ranks_.rank(), ranks_.size());
  store_.touch(range.state);
}

void ShardedState::set_range(Tensor& range, const GradientBucket& bucket, size_t member, const Tensor& values, int rank, int ranks) {
  const int64_t size = dtype_size(bucket.dtype), shard = bucket.layout.shard(ranks);
  std::vector<int64_t> elements;
  for (const Shape& shape : bucket.shapes) elements.push_back(shape.elements());
  for (const BucketPiece& piece : pieces_in(bucket.layout, elements, {shard * rank, shard * (rank + 1)})) {
    if (piece.member != member) continue;
    std::memcpy(static_cast<std::byte*>(range.data()) + piece.at * size,
                static_cast<const std::byte*>(values.data()) + piece.part.begin * size, static_cast<size_t>(piece.part.size() * size));
  }
}

void ShardedState::gather(size_t range) {
  const GradientBucket& bucket = *list_[range].bucket;
  const int64_t padded = bucket.layout.padded(ranks_.size());
  gathered_ = Tensor(bucket.dtype, Shape{padded});
  ranks_.all_gather(list_[range].state, store_.tensor(list_[range].state).data(), gathered_.data(), padded, bucket.dtype);
  gathered_range_ = range;
}

Tensor ShardedState::values_of(const Whole& whole) {
  if (gathered_range_ != whole.range) {
    auto request = static_cast<int64_t>(whole.range);
    ranks_.broadcast("state", &request, 1, DType::kI64, 0);
    gather(whole.range);
  }
  const GradientBucket& bucket = *list_[whole.range].bucket;
  Tensor values(bucket.dtype, bucket.shapes[whole.member]);
  std::memcpy(values.data(),
              static_cast<const std::byte*>(gathered_.data()) + bucket.layout.offsets[whole.member] * dtype_size(bucket.dtype),
              static_cast<size_t>(values.bytes()));
  return values;
}

TensorSource ShardedState::source(const std::string& name) {
  const Whole& whole = whole_.at(name);
  const GradientBucket& bucket = *list_[whole.range].bucket;
  return {name, bucket.dtype, bucket.shapes[whole.member], [this, whole] { return values_of(whole); }};
}

std::vector<TensorSource> ShardedState::states() {
  std::vector<TensorSource> sources;
  for (const std::string& name : order_) sources.push_back(source(name));
  return sources;
}

void ShardedState::serve() {
  for (;;) {
    int64_t request = -1;
    ranks_.broadcast("state", &request, 1, DType::kI64, 0);
    if (request < 0) break;
    gather(static_cast<size_t>(request));
  }
  gathered_ = Tensor();
  gathered_range_ = SIZE_MAX;
}

void ShardedState::finish() {
  int64_t end = -1;
  ranks_.broadcast("state", &end, 1, DType::kI64, 0);
  gathered_ = Tensor();
  gathered_range_ = SIZE_MAX;
}

}  // namespace galley
