#pragma once
// Checkpoints that a crash, a full disk or a flipped bit cannot take away.
//
// Note [Checkpoint protocol]. A checkpoint is a folder step-000500/ of one safetensors file per group of tensors and a
// manifest.json that holds the step, the state, every tensor's digest and its own. It is written into
// step-000500.tmp-<id>/: each file with digests computed from memory and then fsync, the manifest last, then fsync of the
// folder; it is read back and compared with the manifest; only then renamed to its name, and the parent folder synced. Older
// ones are removed after that, never before. So a folder named step-N is complete, whatever happened, and what damages it
// later is found by its digests: newest() takes the newest that verifies and says loudly what it skipped.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "libcore/weights/safetensors.h"

namespace galley {

/// What is saved. Tensors are grouped as the trainer likes ("parameters", "buffers", "optimizer", "ema", "data"); weights are
/// loaded from a checkpoint's groups "parameters" and "buffers".
struct CheckpointGroup {
  std::string name;  ///< Lower-case letters, digits, '_': the file's name.
  std::vector<TensorSource> tensors;
};
struct CheckpointContent {
  int64_t step = 0;
  std::vector<CheckpointGroup> groups;
  /// Scalar state (step counters, loss scale, position in the data) as a JSON object; numbers come back with the same bits.
  std::string state = "{}";
  /// Digest of the resolved recipe, which decides whether a run may continue from here.
  std::string recipe_digest;
  /// How good it is, larger is better, for KeepPolicy::best (a loss is handed over negated); none where not evaluated.
  std::optional<double> score;
  /// Goes into each file's `__metadata__` (galley.recipe, galley.pipeline...).
  Metadata metadata;
};

/// A checkpoint on the disk. Opening reads and checks the manifest and the sizes; verify() reads everything.
class Checkpoint {
 public:
  /// Throws Error (exit code 4) naming what is missing or damaged.
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
  /// Tensors of a group, mapped (they stay valid when the checkpoint is removed). Digests are not checked again.
  std::map<std::string, Tensor, std::less<>> read(std::string_view group) const;
  /// Reads every file and compares it with the manifest; an Error names the file and the tensor that differ.
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

/// Whether a folder is meant to be a checkpoint (it holds a manifest).
bool is_checkpoint(const std::string& folder);
/// The checkpoints' folders in RUN/checkpoints, newest step first; empty where there are none.
std::vector<std::string> checkpoint_folders(const std::string& parent);

struct KeepPolicy {
  int64_t last = 2;  ///< At least 1.
  int64_t best = 0;  ///< By score; of equal scores the earlier one.
};

/// RUN/checkpoints: saving, finding again, keeping the last and the best.
class CheckpointStore {
 public:
  /// Touches nothing on the disk.
  CheckpointStore(std::string parent, KeepPolicy keep);

  /// Removes what crashed saves left behind (in the parent folder's own files too). Once at the start of a run, by its only writer.
  void remove_stale();
  /// Saves by the protocol, then removes what the policy does not keep. Returns the folder. On any Error (exit code 7: no space,
  /// unwritable, a failed fsync or read-back) nothing that existed before has changed and no temporary is left.
  std::string save(const CheckpointContent& content);
  /// The newest checkpoint, all its digests verified. Falls back to older ones, with a warning that names the damaged one and the
  /// damage; none where there are no checkpoints; an Error (exit code 4) where there are some and all are damaged.
  std::optional<Checkpoint> newest() const;

 private:
  void publish(const std::string& temporary, const std::string& folder);
  void remove_surplus(const std::string& newest) const;

  std::string parent_;
  KeepPolicy keep_;
};

}  // namespace galley
