#include "libcore/vendor/cuda/library.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <set>

#include "libcore/base/error.h"
#include "libcore/base/log.h"

namespace galley::cuda {
namespace {

constexpr const char* kEnvironment = "GALLEY_CUDA_LIBRARIES";

/// "folder a, folder b"; the loader's path by these words.
std::string listed(const std::vector<std::string>& folders) {
  std::string text;
  for (const std::string& folder : folders) text += (text.empty() ? "" : ", ") + (folder.empty() ? "where the loader looks" : folder);
  return text.empty() ? "nowhere" : text;
}

void add_packages(const std::string& environment, std::vector<std::string>& folders) {
  std::error_code ignored;
  for (const auto& python : std::filesystem::directory_iterator(environment + "/lib", ignored)) {
    if (!python.path().filename().string().starts_with("python3")) continue;
    for (const char* package : {"cu13", "cudnn", "nccl"}) folders.push_back(python.path() / "site-packages/nvidia" / package / "lib");
  }
}

/// The folder of an open library; "": unknown.
std::string folder_of(void* handle) {
  const link_map* map = nullptr;
  dlinfo(handle, RTLD_DI_LINKMAP, &map);
  return map != nullptr ? std::filesystem::path(map->l_name).parent_path().string() : "";
}

}  // namespace

std::vector<std::string> library_folders() {
  std::vector<std::string> folders;
  if (const char* given = std::getenv(kEnvironment)) {
    std::string text = given;
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(':', begin), text.size());
      if (end > begin) folders.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    return folders;
  }
  folders = {"", "/usr/local/cuda/lib64", "/usr/local/cuda/lib"};
  if (const char* environment = std::getenv("VIRTUAL_ENV")) add_packages(environment, folders);
  return folders;
}

std::string cure_of(const LibraryRow& row) { return cat(row.cure, ", or name its folder by ", kEnvironment); }

std::string warn_of_problem(const LibraryState& state) {
  static std::mutex mutex;
  static std::set<std::string>& warned = *new std::set<std::string>;
  const std::lock_guard lock(mutex);
  const bool wanted = !library_folders().empty();  // an empty GALLEY_CUDA_LIBRARIES asks for own kernels
  if (wanted && !state.problem.empty() && warned.insert(state.problem).second)
    log(LogLevel::kWarning,
        cat(state.problem, ". Until then Galley's own kernels run instead of those of ", state.name, ", and are slower"));
  return state.problem;
}

Library open_library(const LibraryRow& row, const std::vector<std::string>& folders) {
  Library library{.state = {.name = row.name, .version = "", .file = "", .problem = ""}};
  std::string errors;
  for (const std::string& given : folders) {
    std::string failed, folder = given;
    if (given.empty()) {
      library.handle = dlopen(row.files[0], RTLD_NOW | RTLD_LOCAL);
      if (library.handle == nullptr) failed = dlerror();
      if (failed.starts_with(row.files[0])) continue;  // not that it lacks another library
      if (library.handle != nullptr) folder = folder_of(library.handle);
    }
    const std::string file = folder + "/" + row.files[0];
    std::error_code ignored;
    if (library.handle == nullptr && failed.empty() && !std::filesystem::exists(file, ignored)) continue;
    for (size_t i = row.files.size(); failed.empty() && i-- > 1;) {
      // Of another folder they could be of another version. The loader may have parts of its own elsewhere.
      const std::string part = folder + "/" + row.files[i];
      if (given.empty() && !std::filesystem::exists(part, ignored)) continue;
      if (dlopen(part.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) failed = dlerror();
    }
    if (failed.empty() && library.handle == nullptr) {
      library.handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library.handle == nullptr) failed = dlerror();
    }
    if (failed.empty()) {
      library.state.file = file;
      return library;
    }
    library.handle = nullptr;
    errors += (errors.empty() ? "" : "; ") + failed;
  }
  library.state.problem =
      cat(row.name,
          errors.empty() ? cat(" was not found (", row.files[0], ", searched ", listed(folders), ")") : cat(" cannot be opened: ", errors),
          "; ", cure_of(row));
  return library;
}

void* function_of(const Library& library, const char* name) { return library.handle != nullptr ? dlsym(library.handle, name) : nullptr; }

std::string file_of(void* function) {
  Dl_info info{};
  return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

}  // namespace galley::cuda
