#include "tools/weights/fetch.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <nettle/sha2.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/base/file.h"

namespace galley::tools {
namespace {

constexpr size_t kChunk = 1 << 20;
constexpr curl_off_t kLargestFile = curl_off_t{64} << 30;

std::string offline_fix(const FetchRequest& request) {
  return cat("without network access, fetch ", request.url, " on another machine and copy it to ", request.target);
}

/// TARGET.part, opened and locked.
class PartFile {
 public:
  explicit PartFile(const std::string& target) : path_(target + ".part") {
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail(ErrorCode::kResource, "cannot write ", path_, ": ", std::strerror(errno));
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      ::close(descriptor_);
      throw Error(ErrorCode::kResource, cat("another process is fetching ", target)).suggest("wait until it has finished");
    }
  }
  ~PartFile() { ::close(descriptor_); }
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return ::lseek(descriptor_, 0, SEEK_END); }
  bool truncate() { return ::ftruncate(descriptor_, 0) == 0; }
  bool append(const char* data, size_t count) {
    ::lseek(descriptor_, 0, SEEK_END);
    while (count > 0) {
      const ssize_t written = ::write(descriptor_, data, count);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        error_ = errno;
        return false;
      }
      data += written;
      count -= static_cast<size_t>(written);
    }
    return true;
  }
  void sync() {
    if (::fsync(descriptor_) != 0) fail(ErrorCode::kResource, "cannot write ", path_, ": ", std::strerror(errno));
  }
  /// The error of the last append, or 0.
  int error() const { return error_; }

 private:
  std::string path_;
  int descriptor_ = -1;
  int error_ = 0;
};

struct Transfer {
  PartFile* part = nullptr;
  const FetchRequest* request = nullptr;
  int64_t resumed_at = 0;
};

size_t receive(char* data, size_t size, size_t count, void* user) {
  return static_cast<const Transfer*>(user)->part->append(data, size * count) ? size * count : 0;
}

int report(void* user, curl_off_t total, curl_off_t now, curl_off_t, curl_off_t) {
  const auto& transfer = *static_cast<const Transfer*>(user);
  if (transfer.request->progress) transfer.request->progress(transfer.resumed_at + now, total > 0 ? transfer.resumed_at + total : 0);
  return 0;
}

struct CurlEnd {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};

/// Makes one request. Returns true if the part is complete, false if it cannot be continued: it is as long as the file or longer, or the
/// server does not support ranges.
bool transfer_part(const FetchRequest& request, PartFile& part) {
  const std::unique_ptr<CURL, CurlEnd> handle(curl_easy_init());
  if (!handle) fail(ErrorCode::kResource, "cannot initialize libcurl");
  Transfer transfer{&part, &request, part.size()};
  std::array<char, CURL_ERROR_SIZE> reason{};
  const auto set = [&](CURLoption option, auto value) {
    const CURLcode code = curl_easy_setopt(handle.get(), option, value);
    GALLEY_ASSERT(code == CURLE_OK, curl_easy_strerror(code));
  };
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_ERRORBUFFER, reason.data());
  set(CURLOPT_PROTOCOLS_STR, "http,https,file");
  set(CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  set(CURLOPT_FOLLOWLOCATION, 1L);
  set(CURLOPT_MAXREDIRS, 5L);
  set(CURLOPT_FAILONERROR, 1L);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_CONNECTTIMEOUT, 30L);
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, 60L);
  set(CURLOPT_MAXFILESIZE_LARGE, kLargestFile);
  set(CURLOPT_USERAGENT, "galley-weights");
  set(CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(transfer.resumed_at));
  set(CURLOPT_WRITEFUNCTION, receive);
  set(CURLOPT_WRITEDATA, static_cast<void*>(&transfer));
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, report);
  set(CURLOPT_XFERINFODATA, static_cast<void*>(&transfer));
  const CURLcode code = curl_easy_perform(handle.get());
  long status = 0;
  curl_easy_getinfo(handle.get(), CURLINFO_RESPONSE_CODE, &status);
  // curl 8 treats "range not satisfiable" as the end of the file and reports success.
  const bool not_continued = status == 416 || code == CURLE_RANGE_ERROR || code == CURLE_BAD_DOWNLOAD_RESUME;
  if (transfer.resumed_at > 0 && not_continued) return false;
  if (code == CURLE_OK) return true;
  if (part.error() != 0) fail(ErrorCode::kResource, "cannot write ", part.path(), ": ", std::strerror(part.error()));
  const std::string why = reason[0] != '\0' ? reason.data() : curl_easy_strerror(code);
  const int64_t kept = part.size();
  throw Error(ErrorCode::kResource, cat("cannot fetch ", request.url, ": ", why,
                                        kept > 0 ? cat(" (", kept, " bytes are kept; the next fetch continues from there)") : ""))
      .suggest(offline_fix(request));
}

}  // namespace

std::string file_sha256(const std::string& path) {
  const InputFile file(path);
  sha256_ctx context;
  sha256_init(&context);
  std::vector<std::byte> buffer(kChunk);
  for (int64_t at = 0; at < file.size(); at += static_cast<int64_t>(kChunk)) {
    const auto part = std::span(buffer).first(static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(kChunk), file.size() - at)));
    file.read(at, part);
    sha256_update(&context, part.size(), reinterpret_cast<const uint8_t*>(part.data()));
  }
  std::array<uint8_t, SHA256_DIGEST_SIZE> digest;
  sha256_digest(&context, digest.size(), digest.data());
  static constexpr char kHex[] = "0123456789abcdef";
  std::string hex;
  for (const uint8_t byte : digest) hex += {kHex[byte >> 4], kHex[byte & 15]};
  return hex;
}

void check_sha256(const std::string& path, const std::string& digits) {
  if (digits.empty()) return;
  const std::string found = file_sha256(path);
  if (found.starts_with(digits)) return;
  throw Error(ErrorCode::kInput,
              cat(path, " is not the published file: its SHA-256 is ", found, ", but must be ", digits, digits.size() < 64 ? "..." : ""))
      .suggest("the file is damaged or another file: fetch it again");
}

FetchResult fetch(const FetchRequest& request) {
  if (file_exists(request.target)) {
    check_sha256(request.target, request.sha256);
    return FetchResult::kHere;
  }
  make_folders(parent_folder(request.target));
  PartFile part(request.target);
  bool resumed = part.size() > 0;
  if (!transfer_part(request, part)) {
    // The part is complete if its hash matches; otherwise start over.
    const bool complete = !request.sha256.empty() && file_sha256(part.path()).starts_with(request.sha256);
    resumed = complete;
    if (!complete && (!part.truncate() || !transfer_part(request, part)))
      fail(ErrorCode::kResource, "cannot fetch ", request.url, " from its beginning");
  }
  try {
    check_sha256(part.path(), request.sha256);
  } catch (const Error& error) {
    remove_tree(part.path());
    throw Error(error.code(), cat("the data from ", request.url, " is not the published file: ", error.message(), "; it was removed"))
        .suggest("fetch it again; if the error repeats, the file at this address has changed");
  }
  part.sync();
  rename_durably(part.path(), request.target);
  return resumed ? FetchResult::kResumed : FetchResult::kFetched;
}

}  // namespace galley::tools
