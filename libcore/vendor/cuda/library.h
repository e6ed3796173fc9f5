#pragma once
// Opens NVIDIA's libraries at run time, all files of one library from one folder, and fills tables of their functions.

#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "libcore/vendor/cuda/driver.h"

namespace galley::cuda {

/// What is looked for.
struct LibraryRow {
  const char* name;                    ///< "cuBLASLt"
  std::span<const char* const> files;  ///< The first has the functions; it finds the others in its folder, where they are opened before it.
  const char* cure;                    ///< "pip install nvidia-cublas (13.0 or later)"
};

/// An opened library; `state.problem` says why not.
struct Library {
  void* handle = nullptr;
  LibraryState state;
};

/// The folders in which libraries are looked for: those of the environment variable GALLEY_CUDA_LIBRARIES, separated by colons, and no
/// others; else "", which stands for the loader's path, the folder of the toolkit, and the packages of the active Python environment.
std::vector<std::string> library_folders();

/// "install version 13, or name its folder by GALLEY_CUDA_LIBRARIES"
std::string cure_of(const LibraryRow& row);

/// Returns the problem of a library that an operator could use. A warning says it once, and that own kernels run instead.
std::string warn_of_problem(const LibraryState& state);

/// Opens the library from the first folder that has its first file. Never throws.
Library open_library(const LibraryRow& row, const std::vector<std::string>& folders);

/// The address of a function; nullptr: the library has none.
void* function_of(const Library& library, const char* name);

/// Collects the names of missing functions.
class FunctionTaker {
 public:
  explicit FunctionTaker(const Library& library) : library_(library) {}
  template <class F>
  void take(const char* name, F& target) {
    target = reinterpret_cast<F>(function_of(library_, name));
    if (target == nullptr) missing_ += (missing_.empty() ? "" : ", ") + std::string(name);
  }
  const std::string& missing() const { return missing_; }

 private:
  const Library& library_;
  std::string missing_;
};

/// The file that holds a function of a library.
std::string file_of(void* function);

}  // namespace galley::cuda
