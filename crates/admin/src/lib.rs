//! The admin API of a server: REST on a unix socket and loopback TCP, an event stream, metrics, and the
//! web page.
//!
//! A request passes `listen` (connection and peer), `caller` (authorisation), the handler, a short look
//! at the keeper, and `row` and `display` (text). A look examines a bounded number of entries, as the
//! engine waits meanwhile. The API runs on a thread of its own.
//!
//! | module | contents |
//! |---|---|
//! | [`api`] | request and reply types, the source of the OpenAPI document |
//! | `status`, `exports`, `clients`, `client_io`, `locks`, `grace`, `events`, `metrics`, `page` | handlers |
//! | `health` | health findings (LK1xx) |
//! | `listing`, `row`, `files` | paging through locks, and their texts |
//! | `listen`, `write_timeout`, `quota`, `runtime` | sockets, limits per caller, the thread |
//! | `caller`, `token` | who may read and who may change |
//! | `extract`, `json`, `problem`, `display` | request parsing, replies, errors, escaping |
#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod api;
mod caller;
mod client_io;
mod clients;
mod display;
mod events;
mod exports;
mod extract;
mod files;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod grace;
mod health;
mod json;
mod listen;
mod listing;
mod locks;
mod metrics;
mod page;
mod problem;
mod quota;
mod row;
mod runtime;
mod status;
mod token;
mod write_timeout;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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

use crate::api::{LockCounts, Problem, ReloadResult};
use crate::caller::UserDirectory;
use crate::listen::SocketFile;
use crate::quota::{Budgets, Quota};
use crate::runtime::AdminRuntime;

pub use listen::ListenError;
pub use token::TokenError;

/// Concurrent readers of events.
const READERS_MAX: usize = 64;

/// How long a stop waits for requests that hang in a file system.
const CLOSE_MAX: Duration = Duration::from_millis(500);

/// Status before the server starts or stands by.
pub(crate) const STARTING: &str = "starting";

/// Addresses of the API, and facts about the server.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Settings {
    /// Where the commands reach the server.
    pub socket: Option<PathBuf>,
    /// Port 0 means any free port.
    pub listen: Option<SocketAddr>,
    /// Where `/metrics`, `/health` and `/ready` alone are served, to all. Port 0 means any free port.
    pub metrics: Option<SocketAddr>,
    /// File with the token that authorises changes over TCP; created if absent.
    pub token: Option<PathBuf>,
    /// Who is shown the paths of locked files.
    pub paths: PathVisibility,
    pub facts: Facts,
}

impl Settings {
    /// Where the commands reach the server.
    #[must_use]
    pub fn with_socket(self, socket: impl Into<PathBuf>) -> Self {
        Self { socket: Some(socket.into()), ..self }
    }

    /// Where the API and the page are served over TCP; port 0 means any free port.
    #[must_use]
    pub fn with_listen(self, listen: SocketAddr) -> Self {
        Self { listen: Some(listen), ..self }
    }

    /// Where `/metrics`, `/health` and `/ready` alone are served, to all.
    #[must_use]
    pub fn with_metrics(self, metrics: SocketAddr) -> Self {
        Self { metrics: Some(metrics), ..self }
    }

    /// File with the token that authorises changes over TCP; created if absent.
    #[must_use]
    pub fn with_token(self, token: impl Into<PathBuf>) -> Self {
        Self { token: Some(token.into()), ..self }
    }

    /// Who is shown the paths of locked files.
    #[must_use]
    pub fn with_paths(self, paths: PathVisibility) -> Self {
        Self { paths, ..self }
    }

    /// What the API says about the server.
    #[must_use]
    pub fn with_facts(self, facts: Facts) -> Self {
        Self { facts, ..self }
    }
}

/// Who is shown the paths of locked files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PathVisibility {
    /// Those who may make changes.
    #[default]
    Operators,
    /// All who may read.
    All,
}

/// Facts that do not change while the server runs.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Facts {
    pub version: String,
    /// The name of this server among those that share its store.
    pub node: String,
    /// `embedded`, `memory` or `postgres`.
    pub store: String,
    /// Where the store is, without a password.
    pub store_shown: String,
    /// `process`, `power` or `none`.
    pub durability: String,
    /// Another server is expected to stand by on the same store.
    pub is_one_of_pair: bool,
}

impl Facts {
    /// `store` is its kind: `embedded`, `memory`, `postgres`, or a name of your own.
    pub fn new(version: impl Into<String>, store: impl Into<String>) -> Self {
        Self { version: version.into(), store: store.into(), ..Self::default() }
    }

    /// The name of this server among those that share its store.
    #[must_use]
    pub fn with_node(self, node: impl Into<String>) -> Self {
        Self { node: node.into(), ..self }
    }

    /// Where the store is, without a password.
    #[must_use]
    pub fn with_store_shown(self, store_shown: impl Into<String>) -> Self {
        Self { store_shown: store_shown.into(), ..self }
    }

    /// `process`, `power` or `none`.
    #[must_use]
    pub fn with_durability(self, durability: impl Into<String>) -> Self {
        Self { durability: durability.into(), ..self }
    }

    /// Whether another server is expected to stand by on the same store.
    #[must_use]
    pub fn with_is_one_of_pair(self, is_one_of_pair: bool) -> Self {
        Self { is_one_of_pair, ..self }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error("cannot start the admin thread: {0}")]
    Thread(io::Error),
}

/// A request to reload the configuration; the reply is for the caller.
pub struct Reload(pub oneshot::Sender<Result<ReloadResult, String>>);

/// The running API; stops when dropped. Requests about locks fail until [`Admin::serve`].
pub struct Admin {
    admin: Arc<AdminState>,
    socket: Option<SocketFile>,
    runtime: AdminRuntime,
}

pub(crate) struct AdminState {
    facts: Facts,
    token: Option<String>,
    tcp: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    started: Instant,
    started_ms: u64,
    control: RwLock<Result<Control, String>>,
    users: UserDirectory,
    paths: PathVisibility,
    budgets: Budgets,
    readers: Arc<Quota>,
    counts: watch::Sender<Option<LockCounts>>,
    reloads: mpsc::Sender<Reload>,
    /// The last summary, shown while the engine waits for the store.
    last_summary: Mutex<Option<status::KeeperSummary>>,
}

impl Admin {
    /// Opens the sockets. Reload requests go to `reloads`.
    pub async fn start(
        settings: Settings,
        reloads: mpsc::Sender<Reload>,
    ) -> Result<Self, AdminError> {
        let runtime = AdminRuntime::start().map_err(AdminError::Thread)?;
        let opened = runtime.spawn(Self::open(settings, reloads)).await;
        let (admin, socket) = opened.map_err(|error| AdminError::Thread(error.into()))??;
        Ok(Self { admin, socket, runtime })
    }

    async fn open(
        settings: Settings,
        reloads: mpsc::Sender<Reload>,
    ) -> Result<(Arc<AdminState>, Option<SocketFile>), AdminError> {
        // Dropping `SocketFile` on an error removes the socket.
        let (unix, socket) = match &settings.socket {
            Some(path) => listen::unix(path).await.map(|(unix, file)| (Some(unix), Some(file)))?,
            None => (None, None),
        };
        let tcp = match settings.listen {
            Some(address) => Some(listen::tcp(address).await?),
            None => None,
        };
        let metrics = match settings.metrics {
            Some(address) => Some(listen::tcp(address).await?),
            None => None,
        };
        let token = settings.token.as_deref().filter(|_| tcp.is_some()).map(token::read_or_make);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let admin = Arc::new(AdminState {
            facts: settings.facts,
            token: token.transpose()?,
            tcp: tcp.as_ref().and_then(|listener| listener.local_addr().ok()),
            metrics: metrics.as_ref().and_then(|listener| listener.local_addr().ok()),
            started: Instant::now(),
            started_ms: now.as_millis() as u64,
            control: RwLock::new(Err(STARTING.into())),
            users: UserDirectory::default(),
            paths: settings.paths,
            budgets: Budgets::default(),
            readers: Quota::new(READERS_MAX),
            counts: watch::channel(None).0,
            reloads,
            last_summary: Mutex::default(),
        });
        let router = router(&admin);
        if let Some(listener) = unix {
            tokio::spawn(listen::serve_unix(listener, router.clone()));
        }
        if let Some(listener) = tcp {
            tokio::spawn(listen::serve_tcp(listener, router));
        }
        if let Some(listener) = metrics {
            tokio::spawn(listen::serve_tcp(listener, metrics_router(&admin)));
        }
        Ok((admin, socket))
    }

    pub fn socket(&self) -> Option<&std::path::Path> {
        self.socket.as_ref().map(SocketFile::path)
    }

    /// The TCP address.
    pub fn tcp(&self) -> Option<SocketAddr> {
        self.admin.tcp
    }

    /// The address of metrics and probes alone.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.admin.metrics
    }

    /// Sets the status text shown until [`Admin::serve`].
    pub fn waiter(&self) -> impl Fn(&str) + Send + Sync + use<> {
        let admin = self.admin.clone();
        move |why| {
            let mut control = admin.control.write().unwrap_or_else(PoisonError::into_inner);
            if control.is_err() {
                *control = Err(why.to_string());
            }
        }
    }

    /// Closes the sockets and ends all connections before it returns.
    pub async fn close(self) {
        let Self { admin, socket, runtime } = self;
        drop(socket);
        runtime.close(CLOSE_MAX).await;
        drop(admin);
    }

    /// Connects the API to the running server.
    pub fn serve(&mut self, control: Control) {
        let counts = events::watch_counts(control.clone(), self.admin.counts.clone());
        self.runtime.spawn(counts);
        self.runtime.spawn(status::keep_summary(self.admin.clone(), control.clone()));
        *self.admin.control.write().unwrap_or_else(PoisonError::into_inner) = Ok(control);
    }
}

impl AdminState {
    fn control(&self) -> Result<Control, Problem> {
        let control = self.control.read().unwrap_or_else(PoisonError::into_inner);
        control.as_ref().cloned().map_err(|why| {
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "standby", format!("not serving: {why}"))
                .hint("lockkeeper status")
        })
    }

    fn last_summary(&self) -> MutexGuard<'_, Option<status::KeeperSummary>> {
        self.last_summary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waits_for(&self) -> String {
        let control = self.control.read().unwrap_or_else(PoisonError::into_inner);
        control.as_ref().err().cloned().unwrap_or_default()
    }

    async fn reload(&self) -> Result<ReloadResult, String> {
        let gone = |_| "the server is stopping".to_string();
        let (answer, answered) = oneshot::channel();
        self.reloads
            .try_send(Reload(answer))
            .map_err(|_| "a reload is already in progress".to_string())?;
        answered.await.map_err(gone)?
    }
}

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Lockkeeper",
        description = "Administration of a Lockkeeper server: clients, locks, recovery, events."
    ),
    components(schemas(api::LockCounts, api::Problem))
)]
struct Document;

/// The OpenAPI document.
pub fn document() -> OpenApi {
    routes().split_for_parts().1
}

fn routes() -> OpenApiRouter<Arc<AdminState>> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(status::status))
        .routes(routes!(exports::list))
        .routes(routes!(exports::reload))
        .routes(routes!(status::health))
        .routes(routes!(status::ready))
        .routes(routes!(clients::list))
        .routes(routes!(client_io::list))
        .routes(routes!(clients::one, clients::forget))
        .routes(routes!(clients::fence, clients::unfence))
        .routes(routes!(clients::notify))
        .routes(routes!(clients::confirm_reboot))
        .routes(routes!(clients::notices, clients::notify_addresses))
        .routes(routes!(locks::list))
        .routes(routes!(locks::one, locks::release))
        .routes(routes!(grace::show))
        .routes(routes!(grace::end))
        .routes(routes!(events::stream))
        .routes(routes!(events::recent))
        .routes(routes!(metrics::scrape))
}

fn router(admin: &Arc<AdminState>) -> Router {
    let (router, document) = routes().split_for_parts();
    let docs: Router<Arc<AdminState>> =
        SwaggerUi::new("/docs").url("/openapi.json", document).into();
    router
        .merge(docs.layer(axum::middleware::map_response(page::protect_docs)))
        .route("/", get(page::index))
        .route("/page/{name}", get(page::file))
        .fallback(nothing_there)
        .method_not_allowed_fallback(not_so)
        .layer(axum::middleware::from_fn_with_state(admin.clone(), caller::admit))
        .with_state(admin.clone())
}

/// What a monitoring system asks for: no page, nothing about clients or locks, and nothing that changes.
fn metrics_router(admin: &Arc<AdminState>) -> Router {
    Router::new()
        .route("/metrics", get(metrics::scrape))
        .route(caller::PROBES[0], get(status::health))
        .route(caller::PROBES[1], get(status::ready))
        .fallback(nothing_there)
        .method_not_allowed_fallback(not_so)
        .with_state(admin.clone())
}

async fn nothing_there() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "not-found", "no such path").hint("GET /openapi.json")
}

async fn not_so() -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method-not-allowed",
        "method not allowed for this path",
    )
    .hint("GET /openapi.json")
}
