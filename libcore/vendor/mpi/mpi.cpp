#include "libcore/vendor/mpi/mpi.h"

#include <dlfcn.h>

#include "libcore/base/error.h"

namespace galley::mpi {
namespace {

constexpr const char* kLibrary = "libmpi.so.40";

struct Opened {
  Functions functions;
  std::string problem;
};

Opened open_library() {
  Opened opened;
  // RTLD_GLOBAL: the plug-ins of Open MPI look for its symbols.
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    opened.problem =
        cat("Open MPI is not installed (", dlerror(), "); Debian and Ubuntu: apt install openmpi-bin libopenmpi-dev, or scripts/setup");
    return opened;
  }
  const auto take = [&](const char* name, auto& target) {
    void* symbol = dlsym(library, name);
    if (symbol == nullptr && opened.problem.empty()) opened.problem = cat(kLibrary, " has no ", name, "; Galley needs Open MPI 3, 4 or 5");
    target = reinterpret_cast<std::remove_reference_t<decltype(target)>>(symbol);
  };
  Functions& f = opened.functions;
  take("MPI_Init_thread", f.Init_thread);
  take("MPI_Initialized", f.Initialized);
  take("MPI_Finalize", f.Finalize);
  take("MPI_Abort", f.Abort);
  take("MPI_Comm_rank", f.Comm_rank);
  take("MPI_Comm_size", f.Comm_size);
  take("MPI_Comm_dup", f.Comm_dup);
  take("MPI_Comm_split_type", f.Comm_split_type);
  take("MPI_Isend", f.Isend);
  take("MPI_Irecv", f.Irecv);
  take("MPI_Test", f.Test);
  take("MPI_Get_library_version", f.Get_library_version);
  take("ompi_mpi_comm_world", f.world);
  take("ompi_mpi_byte", f.byte);
  take("ompi_mpi_info_null", f.no_info);
  return opened;
}

const Opened& opened() {
  static const Opened kOpened = open_library();
  return kOpened;
}

}  // namespace

const Functions* functions() { return opened().problem.empty() ? &opened().functions : nullptr; }
std::string why_missing() { return opened().problem; }

}  // namespace galley::mpi
