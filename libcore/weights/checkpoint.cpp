#include "libcore/weights/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "libcore/base/digest.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"

namespace galley {
namespace {

using nlohmann::json;

constexpr std::string_view kManifest = "manifest.json";
constexpr int kFormatVersion = 1;
constexpr int64_t kManifestLimit = int64_t{1} << 28;
// The manifest begins with its own digest at a fixed position (base/digest.h: digest_with_hole).
constexpr std::string_view kManifestStart = R"({"digest":")";
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

json tensor_json(const WrittenTensor& tensor) {
  return {{"name", tensor.name},
          {"dtype", dtype_name(tensor.dtype)},
          {"shape", std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end())},
          {"digest", tensor.digest}};
}

void write_manifest(const std::string& path, const CheckpointContent& content,
                    const std::vector<std::pair<std::string, WrittenFile>>& files) {
  json groups = json::array();
  for (const auto& [name, file] : files) {
    json tensors = json::array();
    for (const WrittenTensor& tensor : file.tensors) tensors.push_back(tensor_json(tensor));
    groups.push_back({{"name", name}, {"bytes", file.bytes}, {"header_digest", file.header_digest}, {"tensors", std::move(tensors)}});
  }
  const json state = json::parse(content.state, nullptr, /*allow_exceptions=*/false);
  GALLEY_ASSERT(state.is_object(), "the state of a checkpoint is not a JSON object: " + content.state.substr(0, 100));
  json manifest = {{"format", kFormatVersion}, {"step", content.step},        {"ranks", 1},      {"recipe_digest", content.recipe_digest},
                   {"state", state},           {"groups", std::move(groups)}, {"score", nullptr}};
  if (content.score.has_value() && std::isfinite(*content.score)) manifest["score"] = *content.score;
  std::string text = cat(kManifestStart, std::string(kDigestDigits, '0'), "\",", manifest.dump(1).substr(1), "\n");
  text.replace(kManifestStart.size(), kDigestDigits, digest_with_hole(text, kManifestStart.size()));
  OutputFile file(path, Publish::kInPlace);
  file.write(text);
  file.finish();
}

bool is_group_name(std::string_view name) {
  return !name.empty() && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string_view::npos;
}

/// Removes the unfinished folder of a failed save; if even that fails, remove_stale does it at the next start.
struct RemovedAtEnd {
  std::string folder;
  ~RemovedAtEnd() {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
};

}  // namespace

bool is_checkpoint(const std::string& folder) { return file_exists(cat(folder, "/", kManifest)); }

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

Checkpoint::Checkpoint(const std::string& folder) : folder_(folder) {
  while (folder_.size() > 1 && folder_.back() == '/') folder_.pop_back();
  const std::string path = cat(folder_, "/", kManifest);
  const std::string text = read_file(path, kManifestLimit);
  const size_t digest_end = kManifestStart.size() + kDigestDigits;
  GALLEY_CHECK_INPUT(
      text.size() > digest_end && text.starts_with(kManifestStart) &&
          digest_with_hole(text, kManifestStart.size()) == std::string_view(text).substr(kManifestStart.size(), kDigestDigits),
      path, ": the manifest does not match its digest: it is damaged");
  try {
    const json manifest = json::parse(text);
    const int format = manifest.at("format").get<int>();
    GALLEY_CHECK_INPUT(format == kFormatVersion, path, ": the checkpoint has format ", format, ", but this version of Galley reads format ",
                       kFormatVersion, ": continue the run with the version that wrote it");
    step_ = manifest.at("step").get<int64_t>();
    state_ = manifest.at("state").dump();
    recipe_digest_ = manifest.at("recipe_digest").get<std::string>();
    if (!manifest.at("score").is_null()) score_ = manifest.at("score").get<double>();
    for (const json& entry : manifest.at("groups")) {
      Group group{entry.at("name").get<std::string>(), entry.at("bytes").get<int64_t>(), entry.at("header_digest").get<std::string>(), {}};
      GALLEY_CHECK_INPUT(is_group_name(group.name), path, ": '", group.name, "' is not a valid name of a tensor group");
      for (const json& tensor : entry.at("tensors")) {
        const auto sizes = tensor.at("shape").get<std::vector<int64_t>>();
        group.tensors.push_back({tensor.at("name").get<std::string>(), parse_dtype(tensor.at("dtype").get<std::string>()),
                                 Shape(std::span<const int64_t>(sizes)), tensor.at("digest").get<std::string>()});
      }
      groups_.push_back(std::move(group));
    }
  } catch (const json::exception& error) {
    fail(ErrorCode::kInput, path, ": it is not a checkpoint manifest: ", error.what());
  }
  for (const Group& group : groups_) {
    const InputFile file(file_of(group.name));
    GALLEY_CHECK_INPUT(file.size() == group.bytes, file.path(), " has ", file.size(), " bytes, but the manifest says ", group.bytes,
                       ": it is truncated or damaged");
  }
}

std::vector<std::string> Checkpoint::groups() const {
  std::vector<std::string> names;
  for (const Group& group : groups_) names.push_back(group.name);
  return names;
}

bool Checkpoint::has_group(std::string_view name) const {
  return std::any_of(groups_.begin(), groups_.end(), [&](const Group& group) { return group.name == name; });
}

const Checkpoint::Group& Checkpoint::group(std::string_view name) const {
  for (const Group& group : groups_) {
    if (group.name == name) return group;
  }
  throw Error(ErrorCode::kInput, cat("checkpoint ", folder_, " has no group '", name, "'"))
      .suggest("it was saved by a run with other settings");
}

std::string Checkpoint::file_of(std::string_view group) const { return cat(folder_, "/", group, ".safetensors"); }

std::map<std::string, Tensor, std::less<>> Checkpoint::read(std::string_view name) const {
  const Group& wanted = group(name);
  const SafetensorsFile file(file_of(name));
  std::map<std::string, Tensor, std::less<>> tensors;
  for (const WrittenTensor& tensor : wanted.tensors) tensors[tensor.name] = file.read(tensor.name);
  return tensors;
}

void Checkpoint::each(std::string_view name, const std::function<void(const std::string&, const Tensor&)>& visit) const {
  const Group& wanted = group(name);
  const std::string path = file_of(name);
  // Values are read, not mapped: pages of a mapping would stay in memory until its end.
  const SafetensorsFile table(path);
  const InputFile file(path);
  for (const WrittenTensor& tensor : wanted.tensors) {
    const SafetensorsEntry* entry = table.find(tensor.name);
    GALLEY_CHECK_INPUT(entry != nullptr && entry->dtype, path, ": tensor '", tensor.name, "' is missing");
    Tensor values(*entry->dtype, entry->shape, entry->format);
    file.read(entry->begin, {static_cast<std::byte*>(values.data()), static_cast<size_t>(entry->end - entry->begin)});
    visit(tensor.name, values.to(MemoryFormat::contiguous()));
  }
}

void Checkpoint::verify() const {
  for (const Group& group : groups_) {
    const SafetensorsFile file(file_of(group.name));
    file.verify();
    // The file is consistent in itself; compare it with the manifest, so that a file of another checkpoint is detected.
    for (const WrittenTensor& tensor : group.tensors) {
      const SafetensorsEntry* entry = file.find(tensor.name);
      GALLEY_CHECK_INPUT(entry != nullptr && entry->dtype == tensor.dtype && entry->shape == tensor.shape, file.path(), ": tensor '",
                         tensor.name, "' differs from the manifest");
      const auto digest = file.metadata().find(cat("galley.digest.", tensor.name));
      GALLEY_CHECK_INPUT(digest != file.metadata().end() && digest->second == tensor.digest, file.path(), ": tensor '", tensor.name,
                         "' differs from the manifest: its digest is different");
    }
    GALLEY_CHECK_INPUT(file.entries().size() == group.tensors.size() && file.header_digest() == group.header_digest, file.path(),
                       ": the header differs from the manifest");
  }
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
  std::vector<std::pair<std::string, WrittenFile>> files;
  for (const CheckpointGroup& group : content.groups) {
    GALLEY_ASSERT(is_group_name(group.name), "group name: " + group.name);
    files.push_back({group.name, write_safetensors(cat(temporary, "/", group.name, ".safetensors"), group.tensors, content.metadata,
                                                   Publish::kInPlace)});
  }
  write_manifest(cat(temporary, "/", kManifest), content, files);
  sync_folder(temporary);
  try {
    Checkpoint(temporary).verify();
  } catch (const Error& damage) {
    throw Error(ErrorCode::kResource, cat("checkpoint ", folder, " does not read back as written: ", damage.message()))
        .suggest("the disk or the memory may be faulty");
  }
  publish(temporary, folder);
  remove_surplus(folder);
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

std::optional<Checkpoint> CheckpointStore::newest() const {
  std::vector<std::string> damages;
  for (const std::string& folder : checkpoint_folders(parent_)) {
    try {
      Checkpoint checkpoint(folder);
      checkpoint.verify();
      if (!damages.empty()) log(LogLevel::kWarning, cat("continuing from ", folder, " instead"));
      return checkpoint;
    } catch (const Error& damage) {
      damages.push_back(damage.message());
      log(LogLevel::kWarning, cat("checkpoint ", folder, " is damaged and not used: ", damage.message()));
    }
  }
  if (damages.empty()) return std::nullopt;
  std::string text = cat("every checkpoint in ", parent_, " is damaged:");
  for (const std::string& damage : damages) text += "\n  " + damage;
  throw Error(ErrorCode::kInput, text).suggest("start over with --force");
}

}  // namespace galley
