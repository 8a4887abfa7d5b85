"""A handler for small web sites that tests run."""

import http.server


class SmallSite(http.server.BaseHTTPRequestHandler):
    """Answers with a status and content, without logging."""

    def answer(self, status, content, location=None):
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        if location:
            self.send_header("location", location)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass
