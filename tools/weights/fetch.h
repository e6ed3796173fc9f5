#pragma once
// Fetching published weights: the only code of Galley that uses the network.

#include <functional>
#include <string>

namespace galley::tools {

struct FetchRequest {
  std::string url;     ///< http, https or file.
  std::string target;  ///< The file; its folders are made.
  std::string sha256;  ///< All digits, or the first ones; "" checks nothing.
  /// Bytes here and bytes in all (0: unknown), now and then.
  std::function<void(int64_t done, int64_t total)> progress;
};

enum class FetchResult { kHere, kFetched, kResumed };

/// Brings the file. What arrives goes to TARGET.part, which a later call continues; only a complete file whose hash is right gets
/// the name, durably. Throws Error: 7 where the network or the disk fails (the part stays), 4 where the hash is wrong (the part
/// goes). Two processes do not fetch one file at once.
FetchResult fetch(const FetchRequest& request);

/// SHA-256 of a file, 64 lower-case hexadecimal digits.
std::string file_sha256(const std::string& path);

/// Throws (4) where a file's SHA-256 does not begin with these digits.
void check_sha256(const std::string& path, const std::string& digits);

}  // namespace galley::tools
