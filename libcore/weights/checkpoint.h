#pragma once
// Checkpoints that survive crashes and full disks, and detect damage.
//
// Note [Checkpoint protocol]. A checkpoint is a folder step-000500/ with one safetensors file per group of tensors and a manifest.json
// that holds the step, the state, the digest of every tensor and its own digest. It is written to step-000500.tmp-<id>/: each file with
// digests computed from memory, then fsync; the manifest last, then fsync of the folder. It is read back and compared with the manifest,
// then renamed to its final name, and the parent folder is synced. Older checkpoints are removed only afterwards. Therefore a folder named
// step-N is always complete, and later damage is detected by the digests: newest() takes the newest checkpoint that verifies and warns
// about the ones it skipped.
//
// Several ranks write at the same time, each a part, part-0003.safetensors, with the ranges of tensors that it holds and its share of what
// all hold. Rank 0 makes the folder, writes the manifest from the digests of all, and renames the folder after each rank has read its part
// back. A failure on one rank is the error of all. Any number of ranks, and one process, read any checkpoint: by ranges of tensors.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "libcore/weights/checkpoint_manifest.h"
#include "libcore/weights/safetensors.h"

namespace galley {

class Communicator;

/// The content of a checkpoint. The trainer chooses the groups ("parameters", "buffers", "optimizer", "ema", "data"); weights are loaded
/// from the groups "parameters" and "buffers".
struct CheckpointGroup {
  std::string name;  ///< Lower-case letters, digits, '_'; also the file name.
  std::vector<TensorSource> tensors;
};
/// Consecutive elements of a tensor that this rank writes.
struct CheckpointPiece {
  std::string group, name;
  DType dtype = DType::kF32;
  Shape shape;  ///< Of the tensor.
  int64_t begin = 0, end = 0;
  std::function<Tensor()> values;  ///< Of the tensor if the piece is all of it, in any format; else a vector.
};
struct CheckpointContent {
  int64_t step = 0;
  std::vector<CheckpointGroup> groups;  ///< Of a checkpoint that one process writes.
  std::vector<CheckpointPiece> pieces;  ///< Of this rank, in a checkpoint that ranks write.
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
  int64_t step() const { return manifest_.step; }
  const std::string& state() const { return manifest_.state; }
  const std::string& recipe_digest() const { return manifest_.recipe_digest; }
  std::optional<double> score() const { return manifest_.score; }
  /// Whether ranks wrote parts.
  bool in_parts() const { return manifest_.in_parts(); }
  std::vector<std::string> groups() const;
  bool has_group(std::string_view group) const;
  const std::vector<ManifestTensor>& tensors(std::string_view group) const { return find(group).tensors; }
  /// The `__metadata__` of its first file, without digests.
  Metadata metadata() const;

  /// Digests are not checked again by these functions. A tensor, contiguous, mapped where one file has all of it; it stays valid when the
  /// checkpoint is removed.
  Tensor read(const ManifestTensor& tensor) const;
  /// The same in memory of its own: pages of a mapping stay in memory until it ends.
  Tensor read_copy(const ManifestTensor& tensor) const;
  std::map<std::string, Tensor, std::less<>> read(std::string_view group) const;
  /// The elements [begin, begin + out.size() / size of an element), in logical order. Reads only these where files store them contiguous.
  void read_range(const ManifestTensor& tensor, int64_t begin, std::span<std::byte> out) const;
  /// Visits the tensors of a group one after another. Only the visited tensor is in memory.
  void each(std::string_view group, const std::function<void(const std::string& name, const Tensor& values)>& visit) const;
  /// Reads every file and compares it with the manifest; throws Error naming the file and tensor that differ.
  /// `rank` of `ranks`: reads only every ranks-th file.
  void verify(int rank = 0, int ranks = 1) const;
  /// Takes the pages that `read` has mapped out of memory; reading them again is possible.
  void release() const;

 private:
  struct OpenFile;
  const ManifestGroup& find(std::string_view name) const;
  std::string path_of(const ManifestFile& file) const { return folder_ + "/" + file.name; }
  const OpenFile& open(size_t file) const;
  void verify_file(size_t index) const;

  std::string folder_;
  Manifest manifest_;
  mutable std::vector<std::shared_ptr<const OpenFile>> open_;  // by file, opened at the first read
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
  /// The same for ranks, which write their pieces at the same time: all call it, with equal step, and have shared the folder's disk. State,
  /// score and metadata are those of rank 0. If one fails, all throw its error, which names the rank.
  std::string save(const CheckpointContent& content, Communicator& ranks);
  /// The newest checkpoint whose digests all verify. Skips damaged checkpoints with a warning that names the folder and the damage. nullopt
  /// if there are no checkpoints; throws Error (exit code 4) if all are damaged.
  /// `ranks`: all call it, and each verifies a part; nullptr: one process.
  std::optional<Checkpoint> newest(Communicator* ranks = nullptr) const;

 private:
  void publish(const std::string& temporary, const std::string& folder);
  void remove_surplus(const std::string& newest) const;

  std::string parent_;
  KeepPolicy keep_;
};

}  // namespace galley
