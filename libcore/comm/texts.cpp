#include "libcore/comm/texts.h"

#include "libcore/base/error.h"

namespace galley {
namespace {

constexpr char kSeparator = '\x1e';  // not in messages

}  // namespace

std::string broadcast_text(Communicator& ranks, std::string_view name, std::string text, int root) {
  auto length = static_cast<int64_t>(text.size());
  ranks.broadcast(name, &length, 1, DType::kI64, root);
  text.resize(static_cast<size_t>(length));
  if (length > 0) ranks.broadcast(name, text.data(), length, DType::kI8, root);
  return text;
}

std::vector<std::string> gather_texts(Communicator& ranks, std::string_view name, const std::string& own) {
  std::vector<std::string> texts;
  for (int r = 0; r < ranks.size(); ++r) texts.push_back(broadcast_text(ranks, name, own, r));
  return texts;
}

std::string first_text(Communicator& ranks, const std::string& own) {
  // The largest of size - rank over the ranks that have a text is that of the lowest.
  int32_t lowest = own.empty() ? 0 : ranks.size() - ranks.rank();
  ranks.all_reduce("messages", &lowest, &lowest, 1, DType::kI32, ReduceOp::kMax);
  return lowest == 0 ? "" : broadcast_text(ranks, "messages", own, ranks.size() - lowest);
}

void run_on_all(Communicator& ranks, const std::function<void()>& work) {
  std::string own;
  try {
    work();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kWorker) throw;
    own = cat(static_cast<int>(error.code()), kSeparator, "rank ", ranks.rank(), ": ", error.message(), kSeparator, error.suggestion(),
              kSeparator, error.key());
  }
  const std::string first = first_text(ranks, own);
  if (first.empty()) return;
  const size_t code_end = first.find(kSeparator), message_end = first.find(kSeparator, code_end + 1);
  const size_t suggestion_end = first.find(kSeparator, message_end + 1);
  Error error(static_cast<ErrorCode>(std::stoi(first)), first.substr(code_end + 1, message_end - code_end - 1));
  error.suggest(first.substr(message_end + 1, suggestion_end - message_end - 1));
  if (suggestion_end + 1 < first.size()) error.key(first.substr(suggestion_end + 1));
  throw error;
}

}  // namespace galley
