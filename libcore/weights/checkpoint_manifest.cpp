#include "libcore/weights/checkpoint_manifest.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "libcore/base/digest.h"
#include "libcore/base/error.h"

namespace galley {
namespace {

using nlohmann::json;

constexpr int kWhole = 1, kInParts = 2;  // formats

json tensor_json(const ManifestTensor& tensor) {
  return {{"name", tensor.name},
          {"dtype", dtype_name(tensor.dtype)},
          {"shape", std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end())}};
}

ManifestTensor tensor_of(const json& entry) {
  const auto sizes = entry.at("shape").get<std::vector<int64_t>>();
  return {.name = entry.at("name").get<std::string>(),
          .dtype = parse_dtype(entry.at("dtype").get<std::string>()),
          .shape = Shape(std::span<const int64_t>(sizes)),
          .pieces = {}};
}

/// Pieces as [file, begin, end, digest].
json pieces_json(const ManifestTensor& tensor) {
  json pieces = json::array();
  for (const ManifestPiece& piece : tensor.pieces) pieces.push_back({piece.file, piece.begin, piece.end, piece.digest});
  return pieces;
}

json group_json(const ManifestGroup& group) {
  json tensors = json::array();
  for (const ManifestTensor& tensor : group.tensors) {
    tensors.push_back(tensor_json(tensor));
    tensors.back()["pieces"] = pieces_json(tensor);
  }
  return {{"name", group.name}, {"tensors", std::move(tensors)}};
}

ManifestGroup group_of(const json& entry) {
  ManifestGroup group{entry.at("name").get<std::string>(), {}};
  for (const json& item : entry.at("tensors")) {
    ManifestTensor tensor = tensor_of(item);
    for (const json& piece : item.at("pieces"))
      tensor.pieces.push_back({piece.at(0).get<size_t>(), piece.at(1).get<int64_t>(), piece.at(2).get<int64_t>(), piece.at(3)});
    group.tensors.push_back(std::move(tensor));
  }
  return group;
}

json file_json(const ManifestFile& file) { return {{"bytes", file.bytes}, {"header_digest", file.header_digest}}; }

ManifestFile file_of(const json& entry, std::string name) {
  return {std::move(name), entry.at("bytes").get<int64_t>(), entry.at("header_digest").get<std::string>()};
}

void read_whole_groups(Manifest& manifest, const json& entries) {
  for (const json& entry : entries) {
    ManifestGroup group{entry.at("name").get<std::string>(), {}};
    for (const json& item : entry.at("tensors")) {
      ManifestTensor tensor = tensor_of(item);
      tensor.pieces.push_back({manifest.files.size(), 0, tensor.shape.elements(), item.at("digest").get<std::string>()});
      group.tensors.push_back(std::move(tensor));
    }
    manifest.files.push_back(file_of(entry, group.name + ".safetensors"));
    manifest.groups.push_back(std::move(group));
  }
}

void check_pieces(const Manifest& manifest, const std::string& path) {
  for (const ManifestGroup& group : manifest.groups) {
    GALLEY_CHECK_INPUT(is_group_name(group.name), path, ": '", group.name, "' is not a valid name of a tensor group");
    for (const ManifestTensor& tensor : group.tensors) {
      int64_t at = 0;
      for (const ManifestPiece& piece : tensor.pieces) {
        GALLEY_CHECK_INPUT(piece.file < manifest.files.size(), path, ": a piece of tensor '", tensor.name, "' is in part ", piece.file,
                           ", but there are ", manifest.files.size());
        GALLEY_CHECK_INPUT(piece.begin == at && piece.end >= piece.begin, path, ": the pieces of tensor '", tensor.name,
                           "' have a gap or overlap at element ", at);
        at = piece.end;
      }
      GALLEY_CHECK_INPUT(!tensor.pieces.empty() && at == tensor.shape.elements(), path, ": the elements of tensor '", tensor.name,
                         "' from ", at, " on are in no part");
    }
  }
}

}  // namespace

std::string part_name(int rank) {
  const std::string digits = std::to_string(rank);
  return cat("part-", std::string(digits.size() < 4 ? 4 - digits.size() : 0, '0'), digits, ".safetensors");
}

bool is_group_name(std::string_view name) {
  return !name.empty() && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string_view::npos;
}

std::string manifest_text(const Manifest& manifest) {
  json groups = json::array();
  for (const ManifestGroup& group : manifest.groups) {
    if (manifest.in_parts()) {
      groups.push_back(group_json(group));
      continue;
    }
    const ManifestFile& file = manifest.files[groups.size()];
    json tensors = json::array();
    for (const ManifestTensor& tensor : group.tensors) {
      tensors.push_back(tensor_json(tensor));
      tensors.back()["digest"] = tensor.pieces.front().digest;
    }
    groups.push_back({{"name", group.name}, {"tensors", std::move(tensors)}});
    groups.back().update(file_json(file));
  }
  const json state = json::parse(manifest.state, nullptr, /*allow_exceptions=*/false);
  GALLEY_ASSERT(state.is_object(), "the state of a checkpoint is not a JSON object: " + manifest.state.substr(0, 100));
  json whole = {{"format", manifest.in_parts() ? kInParts : kWhole},
                {"step", manifest.step},
                {"ranks", manifest.ranks},
                {"recipe_digest", manifest.recipe_digest},
                {"state", state},
                {"groups", std::move(groups)},
                {"score", nullptr}};
  if (manifest.in_parts()) {
    whole["parts"] = json::array();
    for (const ManifestFile& file : manifest.files) whole["parts"].push_back(file_json(file));
  }
  if (manifest.score.has_value() && std::isfinite(*manifest.score)) whole["score"] = *manifest.score;
  std::string text = cat(kManifestStart, std::string(kDigestDigits, '0'), "\",", whole.dump(1).substr(1), "\n");
  text.replace(kManifestStart.size(), kDigestDigits, digest_with_hole(text, kManifestStart.size()));
  return text;
}

Manifest parse_manifest(const std::string& text, const std::string& path) {
  const size_t digest_end = kManifestStart.size() + kDigestDigits;
  GALLEY_CHECK_INPUT(
      text.size() > digest_end && text.starts_with(kManifestStart) &&
          digest_with_hole(text, kManifestStart.size()) == std::string_view(text).substr(kManifestStart.size(), kDigestDigits),
      path, ": the manifest does not match its digest: it is damaged");
  Manifest manifest;
  try {
    const json whole = json::parse(text);
    const int format = whole.at("format").get<int>();
    GALLEY_CHECK_INPUT(format == kWhole || format == kInParts, path, ": the checkpoint has format ", format,
                       ", but this version of Galley reads formats ", kWhole, " and ", kInParts,
                       ": continue the run with the version that wrote it");
    manifest.step = whole.at("step").get<int64_t>();
    manifest.state = whole.at("state").dump();
    manifest.recipe_digest = whole.at("recipe_digest").get<std::string>();
    if (!whole.at("score").is_null()) manifest.score = whole.at("score").get<double>();
    if (format == kWhole) {
      read_whole_groups(manifest, whole.at("groups"));
    } else {
      manifest.ranks = whole.at("ranks").get<int>();
      for (const json& part : whole.at("parts"))
        manifest.files.push_back(file_of(part, part_name(static_cast<int>(manifest.files.size()))));
      for (const json& group : whole.at("groups")) manifest.groups.push_back(group_of(group));
    }
  } catch (const json::exception& error) {
    fail(ErrorCode::kInput, path, ": it is not a checkpoint manifest: ", error.what());
  }
  check_pieces(manifest, path);
  return manifest;
}

std::string part_text(const ManifestPart& part) {
  json groups = json::array();
  for (const ManifestGroup& group : part.groups) groups.push_back(group_json(group));
  return json{{"file", file_json(part.file)}, {"groups", std::move(groups)}}.dump();
}

void add_parts(Manifest& manifest, const std::vector<std::string>& parts) {
  std::map<std::string, std::map<std::string, size_t>> places;  // of tensors, by group
  for (size_t r = 0; r < parts.size(); ++r) {
    const json part = json::parse(parts[r]);
    manifest.files.push_back(file_of(part.at("file"), part_name(static_cast<int>(r))));
    for (const json& entry : part.at("groups")) {
      ManifestGroup own = group_of(entry);
      auto group = std::find_if(manifest.groups.begin(), manifest.groups.end(), [&](const auto& each) { return each.name == own.name; });
      if (group == manifest.groups.end()) group = manifest.groups.insert(group, {own.name, {}});
      for (ManifestTensor& tensor : own.tensors) {
        for (ManifestPiece& piece : tensor.pieces) piece.file = r;
        const auto [place, added] = places[group->name].emplace(tensor.name, group->tensors.size());
        if (added) {
          group->tensors.push_back(std::move(tensor));
        } else {
          std::vector<ManifestPiece>& pieces = group->tensors[place->second].pieces;
          pieces.insert(pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
        }
      }
    }
  }
  for (ManifestGroup& group : manifest.groups) {
    for (ManifestTensor& tensor : group.tensors)
      std::sort(tensor.pieces.begin(), tensor.pieces.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  }
}

}  // namespace galley
