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

/// The extension, where it names a format; else "".
std::string format_of(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  if (extension == ".yml") return ".yaml";
  return std::find(kFormats.begin(), kFormats.end(), extension) != kFormats.end() ? extension : "";
}

}  // namespace

void check_output_file(const std::string& path, std::string_view why, const std::string& example) {
  if (path.empty()) throw Error(ErrorCode::kUsage, cat(why, ", and -o does not say where to")).suggest("-o " + example);
  const std::filesystem::path named(path);
  const std::string wanted = format_of(example), given = format_of(named);
  if (!wanted.empty() && !given.empty() && given != wanted) {
    throw Error(ErrorCode::kUsage, cat("-o ", path, ": what is written is ", wanted.substr(1), ", not ", given))
        .suggest(cat("-o ", (named.parent_path() / named.stem()).string(), wanted));
  }
  const std::string folder = parent_folder(path);
  if (!is_folder(folder)) fail(ErrorCode::kResource, path, ": there is no folder ", folder, " to write it to");
  if (is_folder(path)) fail(ErrorCode::kResource, path, " is a folder, not a file to be written");
}

}  // namespace galley::tools
