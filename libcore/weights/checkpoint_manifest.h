#pragma once
// The manifest of a checkpoint: which tensors it has, in which files their values are, and all digests. Format 1: one process wrote each
// group of tensors into one file. Format 2: several ranks wrote a part each, "part-0003.safetensors", with whole tensors and ranges.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/tensor/tensor.h"

namespace galley {

inline constexpr std::string_view kManifestName = "manifest.json";
/// The manifest begins with its own digest at a fixed position (base/digest.h: digest_with_hole).
inline constexpr std::string_view kManifestStart = R"({"digest":")";

/// Metadata key of a part: its rank.
inline constexpr std::string_view kPartKey = "galley.part";

/// Consecutive elements of a tensor, in logical order, in one of the files.
struct ManifestPiece {
  size_t file = 0;
  int64_t begin = 0, end = 0;
  std::string digest;
};
struct ManifestTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<ManifestPiece> pieces;  ///< In order, without gaps.

  /// Whether the piece is the tensor. Files store a tensor in its shape, and a range as a vector.
  bool is_whole(const ManifestPiece& piece) const { return piece.end - piece.begin == shape.elements(); }
};
struct ManifestGroup {
  std::string name;
  std::vector<ManifestTensor> tensors;
};
struct ManifestFile {
  std::string name;
  int64_t bytes = 0;
  std::string header_digest;
};
struct Manifest {
  int64_t step = 0;
  int ranks = 1;
  std::string recipe_digest;
  std::string state = "{}";  ///< A JSON object.
  std::optional<double> score;
  std::vector<ManifestFile> files;
  std::vector<ManifestGroup> groups;

  /// Whether ranks wrote parts: format 2.
  bool in_parts() const { return ranks > 1; }
};

/// "part-0003.safetensors"
std::string part_name(int rank);
/// Lower-case letters, digits and '_'.
bool is_group_name(std::string_view name);

/// The text with its digest.
std::string manifest_text(const Manifest& manifest);
/// Parses and checks a manifest. Throws Error (exit code 4) naming `path` if it is damaged, of another format, or if its pieces do not make
/// up the tensors.
Manifest parse_manifest(const std::string& text, const std::string& path);

/// What a rank tells rank 0 about its part.
struct ManifestPart {
  ManifestFile file;
  std::vector<ManifestGroup> groups;  ///< Tensors with one piece.
};
std::string part_text(const ManifestPart& part);
/// The groups of all parts, given in the order of ranks.
void add_parts(Manifest& manifest, const std::vector<std::string>& parts);

}  // namespace galley
