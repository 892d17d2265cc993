//! The web page: the files of `page/`, embedded as they are; nothing is loaded from elsewhere.

use axum::extract::Path;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::api::Problem;

/// `$style` are further sources of style sheets.
macro_rules! policy {
    ($style:literal) => {
        concat!(
            "default-src 'none'; script-src 'self'; style-src 'self'",
            $style,
            "; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; ",
            "frame-ancestors 'none'"
        )
    };
}

const POLICY: &str = policy!("");
/// Swagger UI inserts one style sheet of its own, which is named by its hash.
const DOCS_POLICY: &str = policy!(" 'sha256-RL3ie0nH+Lzz2YNqQN83mnU0J1ot4QL7b99vMdIX99w='");

const PROTECTION: [(HeaderName, &str); 3] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
];

/// Name, content type, content.
type File = (&'static str, &'static str, &'static [u8]);

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const FILES: &[File] = &[
    ("index.html", HTML, include_bytes!("../page/index.html")),
    ("bar.js", SCRIPT, include_bytes!("../page/bar.js")),
    ("clients.js", SCRIPT, include_bytes!("../page/clients.js")),
    ("colours.js", SCRIPT, include_bytes!("../page/colours.js")),
    ("details.js", SCRIPT, include_bytes!("../page/details.js")),
    ("events.js", SCRIPT, include_bytes!("../page/events.js")),
    ("files.js", SCRIPT, include_bytes!("../page/files.js")),
    ("filter.js", SCRIPT, include_bytes!("../page/filter.js")),
    ("header.js", SCRIPT, include_bytes!("../page/header.js")),
    ("link.js", SCRIPT, include_bytes!("../page/link.js")),
    ("list.js", SCRIPT, include_bytes!("../page/list.js")),
    ("map.js", SCRIPT, include_bytes!("../page/map.js")),
    ("page.css", STYLE, include_bytes!("../page/page.css")),
    ("page.js", SCRIPT, include_bytes!("../page/page.js")),
    ("store.js", SCRIPT, include_bytes!("../page/store.js")),
    ("story.js", SCRIPT, include_bytes!("../page/story.js")),
    ("sweep.js", SCRIPT, include_bytes!("../page/sweep.js")),
    ("timeline.js", SCRIPT, include_bytes!("../page/timeline.js")),
    ("token.js", SCRIPT, include_bytes!("../page/token.js")),
    ("traffic.js", SCRIPT, include_bytes!("../page/traffic.js")),
    ("views.css", STYLE, include_bytes!("../page/views.css")),
    ("words.js", SCRIPT, include_bytes!("../page/words.js")),
];

/// The same policy and headers for Swagger UI, which is not among [`FILES`].
pub(crate) async fn protect_docs(mut response: Response) -> Response {
    for (name, value) in PROTECTION {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    let policy = HeaderValue::from_static(DOCS_POLICY);
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    response
}

pub(crate) async fn index() -> Response {
    serve("index.html")
}

pub(crate) async fn file(Path(name): Path<String>) -> Response {
    serve(&name)
}

fn serve(name: &str) -> Response {
    let Some((_, kind, content)) = FILES.iter().find(|(known, ..)| *known == name) else {
        let detail = "no such file";
        return Problem::new(StatusCode::NOT_FOUND, "not-found", detail).into_response();
    };
    // A new server version has a new page.
    let headers = [(header::CONTENT_TYPE, *kind), (header::CACHE_CONTROL, "no-cache")];
    (PROTECTION, headers, *content).into_response()
}
