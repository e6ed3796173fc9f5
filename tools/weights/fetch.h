#pragma once
// Fetches published weights. This is the only code of Galley that uses the network.

#include <functional>
#include <string>

namespace galley::tools {

struct FetchRequest {
  std::string url;     ///< http, https or file.
  std::string target;  ///< The file to write; its folders are created.
  std::string sha256;  ///< All digits or the first ones; "" skips the check.
  /// Called from time to time with the bytes received and in total (0: unknown).
  std::function<void(int64_t done, int64_t total)> progress;
};

enum class FetchResult { kHere, kFetched, kResumed };

/// Fetches the file. Received data goes to TARGET.part, which a later call continues; a complete file with the right hash is renamed to the
/// target durably. Throws Error: exit code 7 if the network or disk fails (the part stays), 4 if the hash is wrong (the part is removed). A
/// lock keeps two processes from fetching a file at once.
FetchResult fetch(const FetchRequest& request);

/// SHA-256 of a file, 64 lower-case hexadecimal digits.
std::string file_sha256(const std::string& path);

/// Throws Error (exit code 4) if the file's SHA-256 does not begin with these digits.
void check_sha256(const std::string& path, const std::string& digits);

}  // namespace galley::tools
