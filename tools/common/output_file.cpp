#include "tools/common/output_file.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "libcore/base/error.h"
#include "libcore/base/file.h"

namespace galley::tools {
namespace {

constexpr std::array<std::string_view, 10> kFormats{".safetensors", ".onnx", ".pth",  ".pt",   ".bin",
                                                    ".npz",         ".npy",  ".gguf", ".yaml", ".json"};

/// The extension if it is that of a known format, otherwise "".
std::string format_of(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  if (extension == ".yml") return ".yaml";
  return std::find(kFormats.begin(), kFormats.end(), extension) != kFormats.end() ? extension : "";
}

}  // namespace

void check_output_file(const std::string& path, std::string_view why, const std::string& example) {
  if (path.empty()) throw Error(ErrorCode::kUsage, cat(why, ", but -o is missing")).suggest("-o " + example);
  const std::filesystem::path named(path);
  const std::string wanted = format_of(example), given = format_of(named);
  if (!wanted.empty() && !given.empty() && given != wanted) {
    throw Error(ErrorCode::kUsage,
                cat("-o ", path, ": the output format is ", wanted.substr(1), ", which does not match the extension ", given))
        .suggest(cat("-o ", (named.parent_path() / named.stem()).string(), wanted));
  }
  const std::string folder = parent_folder(path);
  if (!is_folder(folder)) fail(ErrorCode::kResource, "cannot write ", path, ": the folder ", folder, " does not exist");
  if (is_folder(path)) fail(ErrorCode::kResource, "cannot write ", path, ": it is a folder");
  output_target(path);  // throws for a device or a pipe
}

}  // namespace galley::tools
