#pragma once
// Errors. A mistake in the command, the data or the recipe throws galley::Error (GALLEY_CHECK, fail). A bug in Galley throws InternalError
// (GALLEY_ASSERT, also in release builds). A kernel that does not support a node returns the reason as a value (backends/kernel.h). Only
// tool_main catches.

#include <cstdint>
#include <exception>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace galley {

/// The kind of failure; the value is the exit code of the process.
enum class ErrorCode : int {
  kInternal = 1,
  kUsage = 2,
  kRecipe = 3,
  kInput = 4,
  kNumeric = 5,
  kGoal = 6,
  kResource = 7,
  kWorker = 8,
};

/// A position in a text file. Lines and columns count from 1; 0 means unknown.
struct Place {
  std::string file;
  int line = 0;
  int column = 0;
  /// "file:line:col" without the unknown parts.
  std::string str() const;
};

/// Concatenates its arguments as operator<< prints them. (libstdc++ 12 has no <format>.)
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream out;
  static_cast<void>((out << ... << parts));
  return out.str();
}

/// An error that the user can fix: message, exit code and, where known, position, recipe key and suggested fix.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

  Error& at(Place place) {
    place_ = std::move(place);
    return *this;
  }
  Error& key(std::string key) {
    key_ = std::move(key);
    return *this;
  }
  /// The source line at the position (printed with a caret) and the number of columns to underline.
  Error& excerpt(std::string line, int width) {
    excerpt_ = std::move(line);
    width_ = width;
    return *this;
  }
  /// The suggested fix, e.g. "did you mean 'lr'?".
  Error& suggest(std::string fix) {
    suggestion_ = std::move(fix);
    return *this;
  }
  /// Appends where the error happened, innermost first: " at layer1.0.conv2", " in step 12".
  Error& context(std::string_view where) {
    message_ += where;
    return *this;
  }
  /// Another error in the same file, reported together with this one.
  Error& also(Error other) {
    others_.push_back(std::move(other));
    return *this;
  }

  const char* what() const noexcept override { return message_.c_str(); }
  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const Place& place() const { return place_; }
  const std::string& key() const { return key_; }
  const std::string& suggestion() const { return suggestion_; }
  const std::vector<Error>& others() const { return others_; }
  /// The full text: "file:line:col: error: message", the excerpt with its caret, the suggestion, then the other errors.
  std::string text() const;

 private:
  ErrorCode code_;
  std::string message_;
  Place place_;
  std::string key_;
  std::string excerpt_;
  int width_ = 0;
  std::string suggestion_;
  std::vector<Error> others_;
};

/// A bug in Galley; never thrown for invalid input.
class InternalError : public std::exception {
 public:
  explicit InternalError(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

template <class... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  throw Error(code, cat(parts...));
}

[[noreturn]] void assertion_failed(const char* condition, const char* file, int line, const std::string& message);

/// The candidate nearest to `word` by edit distance (a transposition counts one, and so does a missing "_..." at the end), or "" if none is
/// near.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace galley

/// Checks a condition on the user's model, recipe or arguments; throws Error with exit code 3.
#define GALLEY_CHECK(condition, ...)                                             \
  do {                                                                           \
    if (!(condition)) ::galley::fail(::galley::ErrorCode::kRecipe, __VA_ARGS__); \
  } while (false)

/// Checks a condition on a file that the user names; throws Error with exit code 4.
#define GALLEY_CHECK_INPUT(condition, ...)                                      \
  do {                                                                          \
    if (!(condition)) ::galley::fail(::galley::ErrorCode::kInput, __VA_ARGS__); \
  } while (false)

/// Checks a condition that only a bug in Galley can break; throws InternalError.
#define GALLEY_ASSERT(condition, ...)                                                                         \
  do {                                                                                                        \
    if (!(condition)) ::galley::assertion_failed(#condition, __FILE__, __LINE__, ::galley::cat(__VA_ARGS__)); \
  } while (false)
