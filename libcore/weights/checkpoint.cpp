#include "libcore/weights/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <set>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/comm/texts.h"

namespace galley {
namespace {

constexpr int64_t kManifestLimit = int64_t{1} << 28;
constexpr std::string_view kReplacedSuffix = ".replaced";  // suffix of an earlier checkpoint of the same step

std::string step_name(int64_t step) {
  const std::string digits = std::to_string(step);
  return "step-" + std::string(digits.size() < 6 ? 6 - digits.size() : 0, '0') + digits;
}

/// The step of "step-000500" or "step-000500.replaced"; nullopt for other names.
std::optional<int64_t> step_of(std::string_view name) {
  if (!name.starts_with("step-")) return std::nullopt;
  name.remove_prefix(5);
  if (name.ends_with(kReplacedSuffix)) name.remove_suffix(kReplacedSuffix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || name.empty() || step < 0) return std::nullopt;
  return step;
}

void write_manifest(const std::string& folder, const Manifest& manifest) {
  OutputFile file(cat(folder, "/", kManifestName), Publish::kInPlace);
  file.write(manifest_text(manifest));
  file.finish();
}

Manifest manifest_of(const CheckpointContent& content) {
  Manifest manifest;
  manifest.step = content.step;
  manifest.recipe_digest = content.recipe_digest;
  manifest.state = content.state;
  manifest.score = content.score;
  return manifest;
}

/// Removes the unfinished folder of a failed save; if even that fails, remove_stale does it at the next start.
struct RemovedAtEnd {
  std::string folder;
  ~RemovedAtEnd() {
    std::error_code ignored;
    if (!folder.empty()) std::filesystem::remove_all(folder, ignored);
  }
};

/// Writes what a rank writes of a checkpoint.
ManifestPart write_part(const std::string& temporary, const CheckpointContent& content, int rank) {
  std::vector<TensorSource> sources;
  std::map<std::string, const CheckpointPiece*> pieces;
  for (const CheckpointPiece& piece : content.pieces) {
    GALLEY_ASSERT(is_group_name(piece.group), "group name: " + piece.group);
    const bool whole = piece.end - piece.begin == piece.shape.elements();
    sources.emplace_back(piece.name, piece.dtype, whole ? piece.shape : Shape{piece.end - piece.begin}, piece.values);
    GALLEY_ASSERT(pieces.emplace(piece.name, &piece).second, "two pieces of ", piece.name);
  }
  ManifestPart part;
  Metadata metadata = content.metadata;
  metadata[std::string(kPartKey)] = std::to_string(rank);
  const WrittenFile written = write_safetensors(cat(temporary, "/", part_name(rank)), sources, metadata, Publish::kInPlace);
  part.file = {part_name(rank), written.bytes, written.header_digest};
  for (const WrittenTensor& tensor : written.tensors) {
    const CheckpointPiece& piece = *pieces.at(tensor.name);
    auto group = std::find_if(part.groups.begin(), part.groups.end(), [&](const ManifestGroup& each) { return each.name == piece.group; });
    if (group == part.groups.end()) group = part.groups.insert(group, {piece.group, {}});
    group->tensors.push_back({piece.name, piece.dtype, piece.shape, {{0, piece.begin, piece.end, tensor.digest}}});
  }
  return part;
}

/// Verifies an unfinished checkpoint, or this rank's part of it.
void read_back(const std::string& temporary, const std::string& folder, int rank, int ranks) {
  try {
    Checkpoint(temporary).verify(rank, ranks);
  } catch (const Error& damage) {
    if (damage.code() == ErrorCode::kResource) throw;  // no memory to read it, for instance: nothing is known of the file
    throw Error(ErrorCode::kResource, cat("checkpoint ", folder, " does not read back as written: ", damage.message()))
        .suggest("the disk or the memory may be faulty");
  }
}

}  // namespace

bool is_checkpoint(const std::string& folder) { return file_exists(cat(folder, "/", kManifestName)); }

std::vector<std::string> checkpoint_folders(const std::string& parent) {
  if (!is_folder(parent)) return {};
  std::vector<std::pair<int64_t, std::string>> found;
  for (const FolderEntry& entry : list_folder(parent)) {
    const std::optional<int64_t> step = entry.is_folder ? step_of(entry.name) : std::nullopt;
    if (step) found.push_back({*step, entry.name});
  }
  // For equal steps, "step-N" comes before "step-N.replaced".
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
  std::vector<std::string> folders;
  for (const auto& [step, name] : found) folders.push_back(parent + "/" + name);
  return folders;
}

/// A file of a checkpoint. Ranges are read, not mapped: pages of a mapping would stay in memory until its end.
struct Checkpoint::OpenFile {
  explicit OpenFile(const std::string& path) : table(path), file(path) {}
  SafetensorsFile table;
  InputFile file;

  const SafetensorsEntry& entry(const std::string& tensor) const {
    const SafetensorsEntry* found = table.find(tensor);
    GALLEY_CHECK_INPUT(found != nullptr && found->dtype, file.path(), ": tensor '", tensor, "' is missing");
    return *found;
  }
};

Checkpoint::Checkpoint(const std::string& folder) : folder_(folder) {
  while (folder_.size() > 1 && folder_.back() == '/') folder_.pop_back();
  const std::string path = cat(folder_, "/", kManifestName);
  manifest_ = parse_manifest(read_file(path, kManifestLimit), path);
  for (const ManifestFile& each : manifest_.files) {
    GALLEY_CHECK_INPUT(!in_parts() || file_exists(path_of(each)), path_of(each), " is missing: ", manifest_.ranks,
                       " ranks wrote this checkpoint, a part each");
    const InputFile file(path_of(each));
    GALLEY_CHECK_INPUT(file.size() == each.bytes, file.path(), " has ", file.size(), " bytes, but the manifest says ", each.bytes,
                       ": it is truncated or damaged");
  }
  open_.resize(manifest_.files.size());
}

std::vector<std::string> Checkpoint::groups() const {
  std::vector<std::string> names;
  for (const ManifestGroup& group : manifest_.groups) names.push_back(group.name);
  return names;
}

bool Checkpoint::has_group(std::string_view name) const {
  return std::any_of(manifest_.groups.begin(), manifest_.groups.end(), [&](const ManifestGroup& group) { return group.name == name; });
}

const ManifestGroup& Checkpoint::find(std::string_view name) const {
  for (const ManifestGroup& group : manifest_.groups) {
    if (group.name == name) return group;
  }
  throw Error(ErrorCode::kInput, cat("checkpoint ", folder_, " has no group '", name, "'"))
      .suggest("it was saved by a run with other settings");
}

const Checkpoint::OpenFile& Checkpoint::open(size_t file) const {
  if (open_[file] == nullptr) open_[file] = std::make_shared<const OpenFile>(path_of(manifest_.files[file]));
  return *open_[file];
}

Metadata Checkpoint::metadata() const {
  Metadata metadata = open(0).table.metadata();
  std::erase_if(metadata, [](const auto& item) {
    return item.first.starts_with("galley.digest") || item.first == kMemoryFormatKey || item.first == kPartKey;
  });
  return metadata;
}

void Checkpoint::read_range(const ManifestTensor& tensor, int64_t begin, std::span<std::byte> out) const {
  const int64_t size = dtype_size(tensor.dtype), end = begin + static_cast<int64_t>(out.size()) / size;
  for (const ManifestPiece& piece : tensor.pieces) {
    const int64_t from = std::max(begin, piece.begin), to = std::min(end, piece.end);
    if (from >= to) continue;
    const OpenFile& in = open(piece.file);
    const SafetensorsEntry& entry = in.entry(tensor.name);
    const auto part = out.subspan(static_cast<size_t>((from - begin) * size), static_cast<size_t>((to - from) * size));
    if (entry.format.is_contiguous()) {
      in.file.read(entry.begin + (from - piece.begin) * size, part);
    } else {
      const Tensor values = in.table.read(entry);
      std::memcpy(part.data(), static_cast<const std::byte*>(values.data()) + (from - piece.begin) * size, part.size());
    }
  }
}

Tensor Checkpoint::read_copy(const ManifestTensor& tensor) const {
  Tensor values(tensor.dtype, tensor.shape);
  read_range(tensor, 0, {static_cast<std::byte*>(values.data()), static_cast<size_t>(values.bytes())});
  return values;
}

Tensor Checkpoint::read(const ManifestTensor& tensor) const {
  if (tensor.pieces.size() > 1) return read_copy(tensor);
  const OpenFile& in = open(tensor.pieces.front().file);
  return in.table.read(in.entry(tensor.name));
}

std::map<std::string, Tensor, std::less<>> Checkpoint::read(std::string_view name) const {
  std::map<std::string, Tensor, std::less<>> values;
  for (const ManifestTensor& tensor : tensors(name)) values[tensor.name] = read(tensor);
  return values;
}

void Checkpoint::each(std::string_view name, const std::function<void(const std::string&, const Tensor&)>& visit) const {
  for (const ManifestTensor& tensor : tensors(name)) visit(tensor.name, read_copy(tensor));
}

void Checkpoint::release() const {
  for (const auto& file : open_) {
    if (file != nullptr) file->table.release();
  }
}

void Checkpoint::verify(int rank, int ranks) const {
  for (size_t f = static_cast<size_t>(rank); f < manifest_.files.size(); f += static_cast<size_t>(ranks)) verify_file(f);
}

void Checkpoint::verify_file(size_t index) const {
  const SafetensorsFile file(path_of(manifest_.files[index]));
  file.verify();
  // The file is consistent in itself; compare it with the manifest, so that a file of another checkpoint is detected.
  size_t count = 0;
  for (const ManifestGroup& group : manifest_.groups) {
    for (const ManifestTensor& tensor : group.tensors) {
      for (const ManifestPiece& piece : tensor.pieces) {
        if (piece.file != index) continue;
        ++count;
        const SafetensorsEntry* entry = file.find(tensor.name);
        const Shape shape = tensor.is_whole(piece) ? tensor.shape : Shape{piece.end - piece.begin};
        GALLEY_CHECK_INPUT(entry != nullptr && entry->dtype == tensor.dtype && entry->shape == shape, file.path(), ": tensor '",
                           tensor.name, "' differs from the manifest");
        const auto digest = file.metadata().find(cat("galley.digest.", tensor.name));
        GALLEY_CHECK_INPUT(digest != file.metadata().end() && digest->second == piece.digest, file.path(), ": tensor '", tensor.name,
                           "' differs from the manifest: its digest is different");
      }
    }
  }
  GALLEY_CHECK_INPUT(file.entries().size() == count && file.header_digest() == manifest_.files[index].header_digest, file.path(),
                     ": the header differs from the manifest");
}

CheckpointStore::CheckpointStore(std::string parent, KeepPolicy keep) : parent_(std::move(parent)), keep_(keep) {
  GALLEY_CHECK(keep_.last >= 1 && keep_.best >= 0, "checkpoint.keep: last is ", keep_.last, " and best is ", keep_.best,
               "; last must be at least 1 and best at least 0");
}

void CheckpointStore::remove_stale() {
  if (is_folder(parent_)) remove_stale_temporaries(parent_);
}

std::string CheckpointStore::save(const CheckpointContent& content) {
  make_folders(parent_);
  const std::string folder = parent_ + "/" + step_name(content.step);
  const std::string temporary = temporary_name(folder);
  const RemovedAtEnd cleanup{temporary};
  make_folders(temporary);
  Manifest manifest = manifest_of(content);
  for (const CheckpointGroup& group : content.groups) {
    GALLEY_ASSERT(is_group_name(group.name), "group name: " + group.name);
    const std::string name = group.name + ".safetensors";
    const WrittenFile written = write_safetensors(cat(temporary, "/", name), group.tensors, content.metadata, Publish::kInPlace);
    ManifestGroup& entry = manifest.groups.emplace_back(ManifestGroup{group.name, {}});
    for (const WrittenTensor& tensor : written.tensors)
      entry.tensors.push_back(
          {tensor.name, tensor.dtype, tensor.shape, {{manifest.files.size(), 0, tensor.shape.elements(), tensor.digest}}});
    manifest.files.push_back({name, written.bytes, written.header_digest});
  }
  write_manifest(temporary, manifest);
  sync_folder(temporary);
  read_back(temporary, folder, 0, 1);
  publish(temporary, folder);
  remove_surplus(folder);
  return folder;
}

std::string CheckpointStore::save(const CheckpointContent& content, Communicator& ranks) {
  const bool leads = ranks.rank() == 0;
  const std::string folder = parent_ + "/" + step_name(content.step);
  RemovedAtEnd cleanup;  // of rank 0
  run_on_all(ranks, [&] {
    if (!leads) return;
    make_folders(parent_);
    cleanup.folder = temporary_name(folder);
    make_folders(cleanup.folder);
  });
  const std::string temporary = broadcast_text(ranks, "checkpoint", cleanup.folder, 0);
  ManifestPart part;
  run_on_all(ranks, [&] { part = write_part(temporary, content, ranks.rank()); });
  const std::vector<std::string> parts = gather_texts(ranks, "checkpoint", part_text(part));
  run_on_all(ranks, [&] {
    if (!leads) return;
    Manifest manifest = manifest_of(content);
    manifest.ranks = ranks.size();
    add_parts(manifest, parts);
    write_manifest(temporary, manifest);
    sync_folder(temporary);
  });
  run_on_all(ranks, [&] { read_back(temporary, folder, ranks.rank(), ranks.size()); });
  run_on_all(ranks, [&] {
    if (!leads) return;
    publish(temporary, folder);
    remove_surplus(folder);
  });
  return folder;
}

void CheckpointStore::publish(const std::string& temporary, const std::string& folder) {
  // If the step was saved before (resumed run, signal): rename() does not replace a non-empty folder. An intact checkpoint is moved to a
  // name that newest() knows, so that one of the two can be found at any time; a damaged one is removed.
  const std::string replaced = folder + std::string(kReplacedSuffix);
  if (file_exists(folder)) {
    bool good = false;
    try {
      Checkpoint(folder).verify();
      good = true;
    } catch (const Error& damage) {
      log(LogLevel::kWarning, cat("replacing the damaged checkpoint ", folder, ": ", damage.message()));
    }
    if (good) {
      remove_tree(replaced);
      rename_durably(folder, replaced);
    } else {
      remove_tree(folder);
    }
  }
  rename_durably(temporary, folder);
}

void CheckpointStore::remove_surplus(const std::string& newest) const {
  // Reads only the manifests: the new checkpoint has been verified, the others are only compared by score.
  std::set<std::string> keep{newest};
  std::vector<std::pair<double, std::string>> scored;
  int64_t last = 0;
  bool reached = false;
  const std::vector<std::string> folders = checkpoint_folders(parent_);
  for (const std::string& folder : folders) {
    // Checkpoints of later steps are left over from before the run fell back to an earlier step.
    reached = reached || folder == newest;
    if (!reached || folder.ends_with(kReplacedSuffix)) continue;
    try {
      const Checkpoint checkpoint(folder);
      if (last < keep_.last) keep.insert(folder), ++last;
      if (checkpoint.score().has_value()) scored.push_back({-*checkpoint.score(), folder});
    } catch (const Error& damage) {
      log(LogLevel::kWarning, cat("removing the damaged checkpoint ", folder, ": ", damage.message()));
    }
  }
  // Folders are sorted newest first; for equal scores the earlier step is kept.
  std::reverse(scored.begin(), scored.end());
  std::stable_sort(scored.begin(), scored.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (size_t i = 0; i < std::min(scored.size(), static_cast<size_t>(keep_.best)); ++i) keep.insert(scored[i].second);
  for (const std::string& folder : folders) {
    if (keep.count(folder) != 0) continue;
    // Rename first, so that an interrupted removal does not look like a damaged checkpoint.
    const std::string removed = temporary_name(folder);
    try {
      rename_durably(folder, removed);
      remove_tree(removed);
    } catch (const Error& error) {
      log(LogLevel::kWarning, cat("cannot remove an old checkpoint: ", error.text()));
    }
  }
}

std::optional<Checkpoint> CheckpointStore::newest(Communicator* ranks) const {
  std::vector<std::string> folders = checkpoint_folders(parent_), damages;
  if (ranks != nullptr) {
    std::string list;
    for (const std::string& folder : folders) list += folder + "\n";
    list = broadcast_text(*ranks, "checkpoints", list, 0);
    folders.clear();
    for (size_t at = 0, end = 0; at < list.size(); at = end + 1) {
      end = list.find('\n', at);
      folders.push_back(list.substr(at, end - at));
    }
  }
  for (const std::string& folder : folders) {
    std::optional<Checkpoint> checkpoint;
    std::string damage;
    try {
      checkpoint.emplace(folder);
      checkpoint->verify(ranks != nullptr ? ranks->rank() : 0, ranks != nullptr ? ranks->size() : 1);
    } catch (const Error& error) {
      damage = error.message();
    }
    if (ranks != nullptr) damage = first_text(*ranks, damage);
    if (damage.empty()) {
      if (!damages.empty()) log(LogLevel::kWarning, cat("continuing from ", folder, " instead"));
      return checkpoint;
    }
    damages.push_back(damage);
    log(LogLevel::kWarning, cat("checkpoint ", folder, " is damaged and not used: ", damage));
  }
  if (damages.empty()) return std::nullopt;
  std::string text = cat("every checkpoint in ", parent_, " is damaged:");
  for (const std::string& damage : damages) text += "\n  " + damage;
  throw Error(ErrorCode::kInput, text).suggest("start over with --force");
}

}  // namespace galley
