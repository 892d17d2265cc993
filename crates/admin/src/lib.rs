//! Seeing and steering a server: a REST API on a unix socket and on loopback TCP, an event stream,
//! metrics, and the web page that is fed by them.
//!
//! A question goes one way: `listen` (a connection, and who is at its other end) -> `caller` (may it
//! ask?) -> the file of its noun -> a short look at the keeper -> `row`, `shown` (text). Nothing here
//! makes the engine wait for more than a bounded number of rows.
#![forbid(unsafe_code)]

pub mod api;
mod ask;
mod caller;
mod clients;
mod events;
mod files;
mod grace;
mod health;
mod json;
mod listen;
mod listing;
mod locks;
mod metrics;
mod page;
mod places;
mod problem;
mod row;
mod shown;
mod status;
mod stream;
mod thread;
mod token;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use server::Control;
use tokio::sync::{mpsc, oneshot, watch};
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use utoipa_swagger_ui::SwaggerUi;

use crate::api::{Problem, Tally};
use crate::caller::Register;
use crate::listen::SocketFile;
use crate::places::Places;
use crate::thread::Thread;

pub use listen::ListenError;
pub use token::TokenError;

/// Readers of events at once.
const READERS_MAX: usize = 64;

/// What it waits for until it is told of something else.
pub(crate) const STARTING: &str = "starting";

/// Where the API is served, and what it says about the server.
#[derive(Debug, Clone)]
pub struct Settings {
    pub socket: Option<PathBuf>,
    /// Port 0 is any that is free.
    pub listen: Option<SocketAddr>,
    /// Who can read this file may change things over TCP; it is made if it is not there.
    pub token: Option<PathBuf>,
    pub facts: Facts,
}

/// What does not change while the server runs.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub version: String,
    pub node: String,
    /// `embedded`, `memory` or `postgres`.
    pub store: String,
    pub store_shown: String,
    pub durability: String,
}

#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error("cannot start the thread of the API: {0}")]
    Thread(io::Error),
}

/// Somebody wants the configuration read again; to be answered with what was done, or why not.
pub struct Reload(pub oneshot::Sender<Result<String, String>>);

/// The API, which ends when this is dropped. It answers from the start on; what concerns locks only
/// once there is a server.
pub struct Admin {
    shared: Arc<Shared>,
    socket: Option<SocketFile>,
    thread: Thread,
}

pub(crate) struct Shared {
    facts: Facts,
    token: Option<String>,
    tcp: Option<SocketAddr>,
    started: Instant,
    started_ms: u64,
    control: RwLock<Result<Control, String>>,
    register: Register,
    readers: Arc<Places>,
    tally: watch::Sender<Option<Tally>>,
    reloads: mpsc::Sender<Reload>,
    /// What was seen last, for the time in which nothing can be seen.
    last_look: Mutex<Option<status::Look>>,
}

impl Admin {
    /// Opens the sockets. `reloads` hears who wants the configuration read again.
    pub async fn start(
        settings: Settings,
        reloads: mpsc::Sender<Reload>,
    ) -> Result<Self, AdminError> {
        let thread = Thread::start().map_err(AdminError::Thread)?;
        let opened = thread.spawn(Self::open(settings, reloads)).await;
        let (shared, socket) = opened.map_err(|error| AdminError::Thread(error.into()))??;
        Ok(Self { shared, socket, thread })
    }

    async fn open(
        settings: Settings,
        reloads: mpsc::Sender<Reload>,
    ) -> Result<(Arc<Shared>, Option<SocketFile>), AdminError> {
        // Should anything fail from here on, the socket goes again.
        let (unix, socket) = match &settings.socket {
            Some(path) => listen::unix(path).await.map(|(unix, file)| (Some(unix), Some(file)))?,
            None => (None, None),
        };
        let tcp = match settings.listen {
            Some(address) => Some(listen::tcp(address).await?),
            None => None,
        };
        let token = settings.token.as_deref().filter(|_| tcp.is_some()).map(token::read_or_make);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let shared = Arc::new(Shared {
            facts: settings.facts,
            token: token.transpose()?,
            tcp: tcp.as_ref().and_then(|listener| listener.local_addr().ok()),
            started: Instant::now(),
            started_ms: now.as_millis() as u64,
            control: RwLock::new(Err(STARTING.into())),
            register: Register::default(),
            readers: Places::new(READERS_MAX),
            tally: watch::channel(None).0,
            reloads,
            last_look: Mutex::default(),
        });
        let router = router(&shared);
        if let Some(listener) = unix {
            tokio::spawn(listen::serve_unix(listener, router.clone()));
        }
        if let Some(listener) = tcp {
            tokio::spawn(listen::serve_tcp(listener, router));
        }
        Ok((shared, socket))
    }

    pub fn socket(&self) -> Option<&std::path::Path> {
        self.socket.as_ref().map(SocketFile::path)
    }

    /// Where TCP is served.
    pub fn tcp(&self) -> Option<SocketAddr> {
        self.shared.tcp
    }

    /// What it waits for before there is a server.
    pub fn waiter(&self) -> impl Fn(&str) + Send + Sync + use<> {
        let shared = self.shared.clone();
        move |why| {
            let mut control = shared.control.write().unwrap_or_else(PoisonError::into_inner);
            if control.is_err() {
                *control = Err(why.to_string());
            }
        }
    }

    /// From here on there is one.
    pub fn serve(&mut self, control: Control) {
        let tally = events::keep_tally(control.clone(), self.shared.tally.clone());
        self.thread.spawn(tally);
        *self.shared.control.write().unwrap_or_else(PoisonError::into_inner) = Ok(control);
    }
}

impl Shared {
    fn control(&self) -> Result<Control, Problem> {
        let control = self.control.read().unwrap_or_else(PoisonError::into_inner);
        control.as_ref().cloned().map_err(|why| {
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "standby", format!("not serving: {why}"))
                .hint("lockkeeper status")
        })
    }

    fn last_look(&self) -> MutexGuard<'_, Option<status::Look>> {
        self.last_look.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waits_for(&self) -> String {
        let control = self.control.read().unwrap_or_else(PoisonError::into_inner);
        control.as_ref().err().cloned().unwrap_or_default()
    }

    async fn reload(&self) -> Result<String, String> {
        let gone = |_| "the server is ending".to_string();
        let (answer, answered) = oneshot::channel();
        self.reloads
            .try_send(Reload(answer))
            .map_err(|_| "it is being read already".to_string())?;
        answered.await.map_err(gone)?
    }
}

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Lockkeeper",
        description = "Who holds which lock, since when, is it alive, and how to free it safely."
    ),
    components(schemas(api::Tally, api::Problem))
)]
struct Document;

/// The OpenAPI document.
pub fn document() -> OpenApi {
    routes().split_for_parts().1
}

fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(status::status))
        .routes(routes!(status::exports))
        .routes(routes!(status::reload))
        .routes(routes!(status::health))
        .routes(routes!(status::ready))
        .routes(routes!(clients::list))
        .routes(routes!(clients::one, clients::forget))
        .routes(routes!(clients::fence, clients::unfence))
        .routes(routes!(clients::notify))
        .routes(routes!(clients::confirm_reboot))
        .routes(routes!(clients::notices))
        .routes(routes!(locks::list))
        .routes(routes!(locks::one, locks::release))
        .routes(routes!(grace::show))
        .routes(routes!(grace::end))
        .routes(routes!(events::stream))
        .routes(routes!(events::recent))
        .routes(routes!(metrics::scrape))
}

fn router(shared: &Arc<Shared>) -> Router {
    let (router, document) = routes().split_for_parts();
    router
        .merge(SwaggerUi::new("/docs").url("/openapi.json", document))
        .route("/", get(page::index))
        .route("/page/{name}", get(page::file))
        .fallback(nothing_there)
        .method_not_allowed_fallback(not_so)
        .layer(axum::middleware::from_fn_with_state(shared.clone(), caller::admit))
        .with_state(shared.clone())
}

async fn nothing_there() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "not-found", "there is no such path")
        .hint("GET /openapi.json")
}

async fn not_so() -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method-not-allowed",
        "that cannot be done to this path",
    )
    .hint("GET /openapi.json")
}
