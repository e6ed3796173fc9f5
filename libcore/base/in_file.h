#pragma once
// in_file: errors in a file or folder that the user names.

#include <string>
#include <string_view>

#include "libcore/base/error.h"

namespace galley {

/// An error (exit 4) whose message begins with the file, since messages are also logged alone; the file is its place too.
inline Error in_file(std::string_view file, std::string_view message) {
  Error error(ErrorCode::kInput, cat(file, ": ", message));
  error.at({.file = std::string(file)});
  return error;
}

}  // namespace galley

/// Checks a condition on the contents of a file that the user names.
#define GALLEY_CHECK_FILE(condition, file, ...)                                  \
  do {                                                                           \
    if (!(condition)) throw ::galley::in_file(file, ::galley::cat(__VA_ARGS__)); \
  } while (false)
