#pragma once
// Checkpoints that survive crashes and full disks, and detect damage.
//
// Note [Checkpoint protocol]. A checkpoint is a folder step-000500/ with one safetensors file per group of tensors and a manifest.json
// that holds the step, the state, the digest of every tensor and its own digest. It is written to step-000500.tmp-<id>/: each file with
// digests computed from memory, then fsync; the manifest last, then fsync of the folder. It is read back and compared with the manifest,
// then renamed to its final name, and the parent folder is synced. Older checkpoints are removed only afterwards. Therefore a folder named
// step-N is always complete, and later damage is detected by the digests: newest() takes the newest checkpoint that verifies and warns
// about the ones it skipped.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "libcore/weights/safetensors.h"

namespace galley {

/// The content of a checkpoint. The trainer chooses the groups ("parameters", "buffers", "optimizer", "ema", "data"); weights are loaded
/// from the groups "parameters" and "buffers".
struct CheckpointGroup {
  std::string name;  ///< Lower-case letters, digits, '_'; also the file name.
  std::vector<TensorSource> tensors;
};
struct CheckpointContent {
  int64_t step = 0;
  std::vector<CheckpointGroup> groups;
  /// Scalar state (step counters, loss scale, position in the data) as a JSON object; numbers are restored bit-exactly.
  std::string state = "{}";
  /// Digest of the resolved recipe; decides whether a run may resume from here.
  std::string recipe_digest;
  /// Score for KeepPolicy::best, larger is better (a loss is negated); nullopt if not evaluated.
  std::optional<double> score;
  /// Written to each file's `__metadata__` (galley.recipe, galley.pipeline...).
  Metadata metadata;
};

/// A checkpoint on the disk. The constructor reads and checks the manifest and file sizes; verify() reads everything.
class Checkpoint {
 public:
  /// Throws Error (exit code 4) if something is missing or damaged.
  explicit Checkpoint(const std::string& folder);

  const std::string& folder() const { return folder_; }
  int64_t step() const { return step_; }
  const std::string& state() const { return state_; }
  const std::string& recipe_digest() const { return recipe_digest_; }
  std::optional<double> score() const { return score_; }
  std::vector<std::string> groups() const;
  bool has_group(std::string_view group) const;
  /// Path of a group's safetensors file.
  std::string file_of(std::string_view group) const;
  /// Tensors of a group, mapped; they stay valid when the checkpoint is removed. Digests are not checked again.
  std::map<std::string, Tensor, std::less<>> read(std::string_view group) const;
  /// Visits the tensors of a group one after another. Only the visited tensor is in memory.
  void each(std::string_view group, const std::function<void(const std::string& name, const Tensor& values)>& visit) const;
  /// Reads every file and compares it with the manifest; throws Error naming the file and tensor that differ.
  void verify() const;

 private:
  struct Group {
    std::string name;
    int64_t bytes = 0;
    std::string header_digest;
    std::vector<WrittenTensor> tensors;
  };
  const Group& group(std::string_view name) const;

  std::string folder_;
  int64_t step_ = 0;
  std::string state_;
  std::string recipe_digest_;
  std::optional<double> score_;
  std::vector<Group> groups_;
};

/// Whether a folder contains a checkpoint manifest.
bool is_checkpoint(const std::string& folder);
/// The checkpoint folders in RUN/checkpoints, newest step first.
std::vector<std::string> checkpoint_folders(const std::string& parent);

/// Which checkpoints to keep.
struct KeepPolicy {
  int64_t last = 2;  ///< At least 1.
  int64_t best = 0;  ///< Number of best checkpoints by score; for equal scores the earlier one.
};

/// Manages RUN/checkpoints: saves, finds and removes checkpoints.
class CheckpointStore {
 public:
  /// Does not access the disk.
  CheckpointStore(std::string parent, KeepPolicy keep);

  /// Removes leftovers of crashed saves in the parent folder. Call it once at the start of a run, from its only writer.
  void remove_stale();
  /// Saves by the protocol, then removes checkpoints that the policy does not keep. Returns the folder. If it throws Error (exit code 7: no
  /// space, not writable, failed fsync or read-back), existing checkpoints are unchanged and no temporary folder is left.
  std::string save(const CheckpointContent& content);
  /// The newest checkpoint whose digests all verify. Skips damaged checkpoints with a warning that names the folder and the damage. nullopt
  /// if there are no checkpoints; throws Error (exit code 4) if all are damaged.
  std::optional<Checkpoint> newest() const;

 private:
  void publish(const std::string& temporary, const std::string& folder);
  void remove_surplus(const std::string& newest) const;

  std::string parent_;
  KeepPolicy keep_;
};

}  // namespace galley
