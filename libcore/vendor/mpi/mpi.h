#pragma once
// Open MPI, opened at run time: one binary runs with and without it. Handles are addresses in Open MPI's binary interface (libmpi.so.40,
// versions 3 to 5).

#include <cstdint>
#include <string>

namespace galley::mpi {

/// A communicator, data type, or request of MPI.
using Handle = void*;

inline constexpr int kThreadMultiple = 3;
inline constexpr int kTypeShared = 0;  // MPI_COMM_TYPE_SHARED

/// The functions of MPI that Galley uses, by their names in the standard.
struct Functions {
  int (*Init_thread)(int*, char***, int required, int* provided) = nullptr;
  int (*Initialized)(int* flag) = nullptr;
  int (*Finalize)() = nullptr;
  int (*Abort)(Handle comm, int code) = nullptr;
  int (*Comm_rank)(Handle comm, int* rank) = nullptr;
  int (*Comm_size)(Handle comm, int* size) = nullptr;
  int (*Comm_dup)(Handle comm, Handle* copy) = nullptr;
  int (*Comm_split_type)(Handle comm, int type, int key, Handle info, Handle* part) = nullptr;
  int (*Isend)(const void* data, int count, Handle type, int to, int tag, Handle comm, Handle* request) = nullptr;
  int (*Irecv)(void* data, int count, Handle type, int from, int tag, Handle comm, Handle* request) = nullptr;
  int (*Test)(Handle* request, int* done, void* status) = nullptr;
  int (*Get_library_version)(char* text, int* length) = nullptr;
  Handle world = nullptr;  // MPI_COMM_WORLD
  Handle byte = nullptr;   // MPI_BYTE
  Handle no_info = nullptr;
};

/// The table; opened at the first call. nullptr if Open MPI is not installed.
const Functions* functions();
/// Why functions() is nullptr: what is missing, and how to install it.
std::string why_missing();
/// The length of the buffer of Get_library_version.
inline constexpr int kVersionLength = 256;

}  // namespace galley::mpi
