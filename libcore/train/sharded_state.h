#pragma once
// ShardedState: arrays of which each rank holds a range of every bucket, as the tensors of parameters that checkpoints contain.

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "libcore/comm/communicator.h"
#include "libcore/optim/updates.h"
#include "libcore/passes/shard.h"
#include "libcore/runtime/parameter_store.h"
#include "libcore/train/divided_state.h"

namespace galley {

/// One bucket at a time is whole on rank 0.
class ShardedState : public DividedState {
 public:
  /// `states`: of a step with these buckets. `parameters`: ranks also hold ranges of the parameters. All must outlive the object.
  ShardedState(Communicator& ranks, const ShardGroups& groups, ParameterStore& store, const std::vector<GradientBucket>& buckets,
               const std::vector<StateSpec>& states, bool parameters);

  bool is_range(const std::string& state) const override { return ranges_.count(state) > 0; }
  bool has(const std::string& name) const override { return whole_.count(name) > 0; }
  void load(const std::string& name, DType dtype, const Shape& shape,
            const std::function<void(int64_t begin, std::span<std::byte> to)>& read) override;
  std::vector<CheckpointPiece> pieces() override;

  /// Sets the range of rank `rank` of `ranks` in a bucket from the whole array of a member, contiguous.
  static void set_range(Tensor& range, const GradientBucket& bucket, size_t member, const Tensor& values, int rank, int ranks);

  TensorSource source(const std::string& name) override;

  /// The names of all arrays, with those of their parameters.
  std::map<std::string, std::string> arrays() const;
  DType dtype_of(const std::string& name) const { return list_[whole_.at(name).range].bucket->dtype; }
  /// A whole array, from all ranks, which call it in the same order. Keeps a bucket until it is asked for one of another, or forgets it.
  Tensor whole(const std::string& name);
  void forget() override;

 private:
  struct Range {
    std::string state;   // in the store
    std::string suffix;  // of the names of its tensors; "": parameters
    const GradientBucket* bucket = nullptr;
  };
  std::vector<BucketPiece> own_pieces(const GradientBucket& bucket) const;
  struct Whole {
    size_t range = 0;   // in list_
    size_t member = 0;  // in the bucket
  };
  Tensor give(int64_t range) override;
  /// Collects the range's array from all ranks.
  void gather(size_t range);
  Tensor values_of(const Whole& whole);
  Tensor member_of_gathered(const Whole& whole) const;

  Communicator& ranks_;
  ShardGroups groups_;
  ParameterStore& store_;
  std::vector<Range> list_;
  std::map<std::string, size_t> ranges_;  // places in list_, by name of the state
  std::map<std::string, Whole> whole_;
  Tensor gathered_;
  size_t gathered_range_ = SIZE_MAX;
};

}  // namespace galley
