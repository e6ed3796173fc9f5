#pragma once
// Steps from pieces back to text, as tokenizer.json names them.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libcore/text/regex.h"

namespace galley::text {

/// Changes a list of pieces; the text is what the last step leaves, joined.
using DecodeStep = std::function<void(std::vector<std::string>&)>;

DecodeStep decode_word_piece(const std::string& prefix, bool cleanup);
DecodeStep decode_bpe(const std::string& suffix);
DecodeStep decode_metaspace(const std::string& replacement, bool prepended);
DecodeStep decode_byte_level();
DecodeStep decode_byte_fallback();
DecodeStep decode_fuse();
DecodeStep decode_strip(const std::string& content, int64_t start, int64_t stop);
DecodeStep decode_replace(std::shared_ptr<const Matcher> pattern, const std::string& content);
DecodeStep decode_ctc(const std::string& pad, const std::string& delimiter, bool cleanup);
/// What happens without a decoder: pieces separated by spaces.
DecodeStep decode_spaces();

}  // namespace galley::text
