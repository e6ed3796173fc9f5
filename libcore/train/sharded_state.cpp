#include "libcore/train/sharded_state.h"

#include <cstring>

#include "libcore/train/host_array.h"

namespace galley {

ShardedState::ShardedState(Communicator& ranks, const ShardGroups& groups, ParameterStore& store,
                           const std::vector<GradientBucket>& buckets, const std::vector<StateSpec>& states, bool parameters)
    : DividedState(ranks), ranks_(ranks), groups_(groups), store_(store) {
  for (const GradientBucket& bucket : buckets) {
    if (!parameters) break;
    ranges_[bucket.state] = list_.size();
    for (size_t m = 0; m < bucket.parameters.size(); ++m) whole_[bucket.parameters[m]] = {list_.size(), m};
    list_.push_back({bucket.state, "", &bucket});
  }
  for (const StateSpec& state : states) {
    for (const GradientBucket& bucket : buckets) {
      if (state.of != bucket.state) continue;
      ranges_[state.name] = list_.size();
      const std::string suffix = state.name.substr(bucket.state.size());
      for (size_t m = 0; m < bucket.parameters.size(); ++m) whole_[bucket.parameters[m] + suffix] = {list_.size(), m};
      list_.push_back({state.name, suffix, &bucket});
    }
  }
}

std::vector<BucketPiece> ShardedState::own_pieces(const GradientBucket& bucket) const {
  std::vector<int64_t> elements;
  for (const Shape& shape : bucket.shapes) elements.push_back(shape.elements());
  const int64_t shard = bucket.layout.shard(groups_.ranks);
  return pieces_in(bucket.layout, elements, {shard * groups_.rank, shard * (groups_.rank + 1)});
}

void ShardedState::load(const std::string& name, DType dtype, const Shape& shape,
                        const std::function<void(int64_t begin, std::span<std::byte> to)>& read) {
  const Whole& whole = whole_.at(name);
  const Range& range = list_[whole.range];
  const GradientBucket& bucket = *range.bucket;
  GALLEY_CHECK_INPUT(dtype == bucket.dtype && shape == bucket.shapes[whole.member], "the tensor ", name, " is ", dtype_name(dtype), " ",
                     shape, ", not ", dtype_name(bucket.dtype), " ", bucket.shapes[whole.member]);
  const int64_t size = dtype_size(dtype);
  HostArray held(store_, range.state);
  auto* own = static_cast<std::byte*>(held.array().data());
  for (const BucketPiece& piece : own_pieces(bucket)) {
    if (piece.member == whole.member) read(piece.part.begin, {own + piece.at * size, static_cast<size_t>(piece.part.size() * size)});
  }
  held.changed();
}

std::vector<CheckpointPiece> ShardedState::pieces() {
  std::vector<CheckpointPiece> pieces;
  for (const Range& range : list_) {
    if (range.suffix == ".grad") continue;
    const GradientBucket& bucket = *range.bucket;
    for (BucketPiece piece : own_pieces(bucket)) {
      if (groups_.copies > 1) {
        const int64_t size = piece.part.size(), copy = ranks_.rank() / groups_.ranks;
        const Segment part{size * copy / groups_.copies, size * (copy + 1) / groups_.copies};
        if (part.size() == 0) continue;
        piece.at += part.begin;
        piece.part = {piece.part.begin + part.begin, piece.part.begin + part.end};
      }
      const Shape& shape = bucket.shapes[piece.member];
      const Shape stored = piece.part.size() == shape.elements() ? shape : Shape{piece.part.size()};
      const auto values = [this, &range, &bucket, piece, stored] {
        Tensor values(bucket.dtype, stored);
        const Tensor held = store_.view(range.state);
        std::memcpy(values.data(), static_cast<const std::byte*>(held.data()) + piece.at * dtype_size(bucket.dtype),
                    static_cast<size_t>(values.bytes()));
        return values;
      };
      pieces.push_back({range.suffix.empty() ? "parameters" : "optimizer", bucket.parameters[piece.member] + range.suffix, bucket.dtype,
                        shape, piece.part.begin, piece.part.end, values});
    }
  }
  return pieces;
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
  const int64_t padded = bucket.layout.padded(groups_.ranks);
  gathered_ = Tensor(bucket.dtype, Shape{padded});
  const Tensor held = store_.view(list_[range].state);
  ranks_.all_gather(list_[range].state, held.data(), gathered_.data(), padded, bucket.dtype, {1, groups_.ranks});
  gathered_range_ = range;
}

Tensor ShardedState::values_of(const Whole& whole) {
  if (gathered_range_ != whole.range) request(static_cast<int64_t>(whole.range));
  return member_of_gathered(whole);
}

Tensor ShardedState::give(int64_t range) {
  gather(static_cast<size_t>(range));
  return gathered_;
}

std::map<std::string, std::string> ShardedState::arrays() const {
  std::map<std::string, std::string> names;
  for (const auto& [name, whole] : whole_) names[name] = list_[whole.range].bucket->parameters[whole.member];
  return names;
}

Tensor ShardedState::whole(const std::string& name) {
  const Whole& whole = whole_.at(name);
  if (gathered_range_ != whole.range) gather(whole.range);
  return member_of_gathered(whole);
}

void ShardedState::forget() {
  gathered_ = Tensor();
  gathered_range_ = SIZE_MAX;
}

Tensor ShardedState::member_of_gathered(const Whole& whole) const {
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

}  // namespace galley
