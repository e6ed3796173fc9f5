#pragma once
// Self-contained HTML pages: one file with its scripts and styles, without any request.

#include <string>
#include <string_view>

namespace galley {

struct HtmlPage {
  std::string_view title;   // constant text, not escaped
  std::string_view body;    // HTML
  std::string json;         // an object, available to the script as `data`
  std::string_view script;  // reads `data`; has byId, element, clear, number, amount, share, bytes and table(id, columns, rows)
};

/// The whole document.
std::string html_page(const HtmlPage& page);

}  // namespace galley
