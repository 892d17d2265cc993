//! The sentences of a story. One sentence is one command; all of them are here.
//!
//! ```text
//! alice(7) locks a.db [0..9] exclusive          LOCK by process 7 of alice; `[0..]` is to the end
//! alice(7) reclaims a.db [0..9] exclusive       LOCK with reclaim, which carries no state
//! alice(7) unlocks a.db [0..9]
//! alice(7) cancels a.db [0..9] exclusive
//! alice(7) tests a.db [0..9] exclusive
//!     , waits    , unmonitored (NM_LOCK)    , as a message (GRANTED_MSG is wanted)    , stateless
//!     , with state 5    , handle x    , over udp    
//!     , over a new connection | over an old connection    , nlm 3
//!     , by 10.0.0.101    , tag "x"    , not admitted (by the export)
//! alice shares a.db for read denying write      SHARE; read, write, both, nothing
//! alice reclaims a.db for read denying write
//! alice unshares a.db
//! alice accepts | denies | ignores | misses grant 1      the answer to a callback; ignored: none
//!     came in time; missed: it certainly never left. `alice ignores grants`: from now on
//! alice notifies: alice.lan is in state 5 [over tcp] [as a user]     SM_NOTIFY; the source may be a
//!                                               bare address; a user has no reserved port
//! alice sends FREE_ALL [as bob] [over udp]
//! alice registers by lease                      a client of an embedding program's protocol
//! alice unregisters by lease
//! alice watches bob                             SM_MON
//! alice stops watching bob | everybody          SM_UNMON, SM_UNMON_ALL
//! probe: alice's kernel is alive | gone | silent     does the kernel that took the locks live? It
//!                                               is about the oldest state that was asked about
//! probe: alice is alive | gone | silent              does the host answer at all?
//! probe: alice's monitor is in state 5 | silent      what does its status monitor answer?
//! alice's old connection is reset [after 30 s]  seen without asking, and after how long a silence
//! alice reads a file                            any sign of life that is no lock request
//! alice mounts                                  a call with a valid handle
//! the operator releases lock 1 | fences alice | unfences alice
//!     | confirms the reboot of alice [by force] | ends grace | notifies alice again | forgets alice
//!     | notifies 10.0.0.9
//! 10 s pass                                     s, min, h
//! the store stalls for 10 s                     nothing is decided meanwhile
//! the clock jumps ahead | back 1 h              the wall clock
//! the store is lost                             after a crash; the next one is new
//! the server starts [as roster | as open] [with ...]      also: crashes, stops, crashes and restarts
//!     grace instant, unreachable retain, verify ask | address, roaming, window [of lease] 60 s, registrants window 60 s,
//!     at most 2 locks | locks per file | locks per host | waiters per file | clients | parked
//!     (each also per address), known as "x", 10.0.0.100 is "x",
//!     addresses 10.0.0.101 and 10.0.0.102, 10.0.0.101 was 10.0.0.100, copy of alice and bob
//! the server has addresses 10.0.0.101           from now on
//! who holds a.db?   who waits for a.db?   who shares a.db?   what is known of alice?
//! is it grace?   which notices are owed?
//! alice is at 10.0.0.1 [called "x"]   alice is now in state 5   alice answers notices | no notices
//! alice cannot be reached                       our own network does not lead there
//! ```
//! A sentence that ends with `, and the server crashes before the commit` loses its step.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use lockkeeper_keeper::change::{Exactness, Protocol};
use lockkeeper_keeper::config::{GraceMode, Unreachable, Verify};
use lockkeeper_keeper::identity::{Incarnation, OwnerNamespace, Transport};
use lockkeeper_keeper::range::Range;
use lockkeeper_keeper::request::{
    Access, Form, GrantAnswer, Mode, NoticeResult, ProbeAnswer, Question,
};

use super::words::{Parsed, Words, access, bytes, duration, mode, range};

pub enum Command {
    Lock { who: Process, file: String, range: Range, mode: Mode, terms: LockOptions },
    Unlock { who: Process, file: String, range: Range },
    Cancel { who: Process, file: String, range: Range, mode: Mode },
    Test { who: Process, file: String, range: Range, mode: Mode },
    Share { who: Process, file: String, access: Access, deny: Access, reclaim: bool },
    Unshare { who: Process, file: String },
    AnswerGrant { grant: u64, answer: GrantAnswer },
    Notify { source: Source, name: Vec<u8>, state: u32, transport: Transport, reserved: bool },
    FreeAll { source: Source, name: Option<Vec<u8>>, transport: Transport },
    Register { peer: String, protocol: String },
    Unregister { peer: String, protocol: String },
    Watch { by: String, watched: String },
    StopWatching { by: String, watched: Option<String> },
    Probed { host: String, question: Question, answer: ProbeAnswer },
    Reset { host: String, silent: Duration },
    Heard { host: String },
    Mounted { host: String },
    Operator(OperatorCommand),
    Pass(Duration),
    Stall(Duration),
    HasAddresses(BTreeSet<IpAddr>),
    ClockJumps { back: bool, by: Duration },
    Start { crash: bool, exactness: Exactness, settings: Vec<Setting> },
    StoreLost,
    Crash,
    Stop,
    Show(Show),
    IsAt { peer: String, address: IpAddr, called: Option<Vec<u8>> },
    IsInState { peer: String, state: u32 },
    AnswersNotices { peer: String, result: NoticeResult },
    IgnoresGrants { peer: String },
}

/// A process on a host, and how it reaches the server.
pub struct Process {
    pub peer: String,
    pub number: u32,
    pub tag: Option<String>,
    pub namespace: OwnerNamespace,
}

pub enum Source {
    Peer(String),
    Address(IpAddr),
}

/// The options of a LOCK.
pub struct LockOptions {
    pub wait: bool,
    pub reclaim: bool,
    pub monitored: bool,
    pub form: Form,
    pub stateless: bool,
    /// Since when its connection is open: now, or the start of the server.
    pub connection: Option<ConnectionAge>,
    pub state: Option<u32>,
    pub handle: Option<String>,
    pub admitted: bool,
}

/// When the connection of a request was opened: with it, or when the server started.
pub enum ConnectionAge {
    New,
    Old,
}

pub enum OperatorCommand {
    Release(u64),
    Fence(String),
    Unfence(String),
    ConfirmReboot { host: String, force: bool },
    EndGrace,
    Renotify(String),
    NotifyAddress(IpAddr),
    Forget(String),
}

pub enum Setting {
    Grace(GraceMode),
    Unreachable(Unreachable),
    Verify(Verify),
    Roaming,
    Window(Protocol, Duration),
    AtMost(usize, String),
    KnownAs(Vec<u8>),
    ReverseName(IpAddr, Vec<u8>),
    Addresses(BTreeSet<IpAddr>),
    Formerly(IpAddr, IpAddr),
    Copy(Vec<String>),
}

pub enum Show {
    Holders(String),
    Waiters(String),
    Shares(String),
    Host(String),
    Grace,
    Notices,
}

/// The server's address, unless a story names another.
pub const SERVER_ADDRESS: &str = "10.0.0.100";

pub fn parse(line: &str) -> Parsed<Command> {
    let mut words = Words::new(line)?;
    let command = sentence(&mut words)?;
    words.end()?;
    Ok(command)
}

fn sentence(words: &mut Words) -> Parsed<Command> {
    let subject = words.next()?;
    match subject.as_str() {
        "probe" => return probe(words),
        "who" | "what" | "is" | "which" => return question(&subject, words).map(Command::Show),
        "the" => return institution(words),
        _ => {}
    }
    if let Ok(count) = subject.parse::<u64>() {
        let unit = words.next()?;
        words.eat("pass").or_else(|_| words.eat("passes"))?;
        return Ok(Command::Pass(duration(count, &unit)?));
    }
    if let Some((peer, process)) = subject.split_once('(') {
        let number = process.trim_end_matches(')').parse().map_err(|_| "a process is a number")?;
        return process_sentence(
            Process { peer: peer.into(), number, tag: None, namespace: namespace() },
            words,
        );
    }
    if let Some(host) = subject.strip_suffix("'s") {
        words.eat_all("old connection is reset")?;
        let silent = match words.eat("after") {
            Ok(()) => {
                let count = words.number()?;
                duration(count, &words.next()?)?
            }
            Err(_) => Duration::ZERO,
        };
        return Ok(Command::Reset { host: host.into(), silent });
    }
    host_sentence(subject, words)
}

fn process_sentence(mut who: Process, words: &mut Words) -> Parsed<Command> {
    let verb = words.next()?;
    let file = words.next()?;
    let range = range(&words.next()?)?;
    let needs_mode = verb != "unlocks";
    let mode = if needs_mode { mode(&words.next()?)? } else { Mode::Exclusive };
    let terms = clauses(&mut who, verb == "reclaims", words)?;
    match verb.as_str() {
        "locks" | "reclaims" => Ok(Command::Lock { who, file, range, mode, terms }),
        "unlocks" => Ok(Command::Unlock { who, file, range }),
        "cancels" => Ok(Command::Cancel { who, file, range, mode }),
        "tests" => Ok(Command::Test { who, file, range, mode }),
        other => Err(format!("a process does not do {other:?}")),
    }
}

fn host_sentence(peer: String, words: &mut Words) -> Parsed<Command> {
    let who = |peer| Process { peer, number: 0, tag: None, namespace: namespace() };
    match words.next()?.as_str() {
        verb @ ("shares" | "reclaims") => {
            let file = words.next()?;
            words.eat("for")?;
            let access = access(&words.next()?)?;
            words.eat("denying")?;
            let deny = super::words::access(&words.next()?)?;
            let (mut who, reclaim) = (who(peer), verb == "reclaims");
            clauses(&mut who, false, words)?;
            Ok(Command::Share { who, file, access, deny, reclaim })
        }
        "unshares" => {
            let (mut who, file) = (who(peer), words.next()?);
            clauses(&mut who, false, words)?;
            Ok(Command::Unshare { who, file })
        }
        "ignores" if words.eat("grants").is_ok() => Ok(Command::IgnoresGrants { peer }),
        verb @ ("accepts" | "denies" | "ignores" | "misses") => {
            words.eat("grant")?;
            let answer = match verb {
                "accepts" => GrantAnswer::Accepted,
                "denies" => GrantAnswer::Denied,
                "misses" => GrantAnswer::Unsent,
                _ => GrantAnswer::Unclear,
            };
            Ok(Command::AnswerGrant { grant: words.number()?, answer })
        }
        "notifies" => {
            words.eat(":")?;
            let name = bytes(&words.next()?);
            words.eat_all("is in state")?;
            let (source, state) = (source(peer), words.number()? as u32);
            let transport = match words.eat_all("over tcp") {
                Ok(()) => Transport::Tcp,
                Err(_) => Transport::Udp,
            };
            let reserved = words.eat_all("as a user").is_err();
            Ok(Command::Notify { source, name, state, transport, reserved })
        }
        "sends" => {
            words.eat("FREE_ALL")?;
            let name = if words.eat("as").is_ok() { Some(bytes(&words.next()?)) } else { None };
            let transport = match words.eat_all("over udp") {
                Ok(()) => Transport::Udp,
                Err(_) => Transport::Tcp,
            };
            Ok(Command::FreeAll { source: source(peer), name, transport })
        }
        "registers" => {
            words.eat("by")?;
            Ok(Command::Register { peer, protocol: words.next()? })
        }
        "unregisters" => {
            words.eat("by")?;
            Ok(Command::Unregister { peer, protocol: words.next()? })
        }
        "watches" => Ok(Command::Watch { by: peer, watched: words.next()? }),
        "stops" => {
            words.eat("watching")?;
            let watched = Some(words.next()?).filter(|watched| watched != "everybody");
            Ok(Command::StopWatching { by: peer, watched })
        }
        "mounts" => Ok(Command::Mounted { host: peer }),
        "reads" => words.eat_all("a file").map(|()| Command::Heard { host: peer }),
        "answers" => {
            let answered = words.eat("no").is_err();
            words.eat("notices")?;
            let result = if answered { NoticeResult::Answered } else { NoticeResult::Failed };
            Ok(Command::AnswersNotices { peer, result })
        }
        "cannot" => {
            words.eat_all("be reached")?;
            Ok(Command::AnswersNotices { peer, result: NoticeResult::Unsent })
        }
        "is" if words.eat("at").is_ok() => {
            let address = words.next()?.parse().map_err(|_| "an address follows \"at\"")?;
            let called =
                if words.eat("called").is_ok() { Some(bytes(&words.next()?)) } else { None };
            Ok(Command::IsAt { peer, address, called })
        }
        "is" => {
            words.eat_all("now in state")?;
            Ok(Command::IsInState { peer, state: words.number()? as u32 })
        }
        other => Err(format!("a host does not do {other:?}")),
    }
}

/// The clauses of a request, separated by commas.
fn clauses(who: &mut Process, reclaim: bool, words: &mut Words) -> Parsed<LockOptions> {
    let mut terms = LockOptions {
        wait: false,
        reclaim,
        monitored: true,
        form: Form::Call,
        stateless: false,
        connection: None,
        state: reclaim.then_some(0),
        handle: None,
        admitted: true,
    };
    let (mut ours, mut transport, mut version) =
        (who.namespace.server_address(), who.namespace.transport(), who.namespace.version());
    while words.eat(",").is_ok() {
        match words.next()?.as_str() {
            "waits" => terms.wait = true,
            "unmonitored" => terms.monitored = false,
            "stateless" => terms.stateless = true,
            "not" => words.eat("admitted").map(|()| terms.admitted = false)?,
            "as" => words.eat_all("a message").map(|()| terms.form = Form::Message)?,
            "with" => {
                words.eat("state")?;
                terms.state = Some(words.number()? as u32);
            }
            "handle" => terms.handle = Some(words.next()?),
            "over" if words.eat("udp").is_ok() => transport = Transport::Udp,
            "over" if words.eat("an").is_ok() => words
                .eat_all("old connection")
                .map(|()| terms.connection = Some(ConnectionAge::Old))?,
            "over" => words
                .eat_all("a new connection")
                .map(|()| terms.connection = Some(ConnectionAge::New))?,
            "nlm" => version = words.number()? as u8,
            "by" => ours = words.next()?.parse().map_err(|_| "an address follows \"by\"")?,
            "tag" => who.tag = Some(words.next()?.trim_matches('"').into()),
            other => return Err(format!("no clause begins with {other:?}")),
        }
    }
    who.namespace = OwnerNamespace::new(ours, transport, version);
    Ok(terms)
}

fn probe(words: &mut Words) -> Parsed<Command> {
    words.eat(":")?;
    let host = words.next()?;
    let (host, question) = match host.strip_suffix("'s") {
        Some(host) if words.eat("monitor").is_ok() => (host.to_owned(), Question::State),
        Some(host) => words
            .eat("kernel")
            .map(|()| (host.to_owned(), Question::SameKernel(Incarnation::UNKNOWN)))?,
        None => (host, Question::Reachable),
    };
    words.eat("is")?;
    let answer = match words.next()?.as_str() {
        "alive" => ProbeAnswer::Alive,
        "gone" => ProbeAnswer::Gone,
        "silent" => ProbeAnswer::Silent,
        "in" => {
            words.eat("state")?;
            ProbeAnswer::InState(Incarnation(words.number()? as u32))
        }
        other => return Err(format!("a probe does not find {other:?}")),
    };
    Ok(Command::Probed { host, question, answer })
}

fn question(first: &str, words: &mut Words) -> Parsed<Show> {
    let show = match (first, words.next()?.as_str()) {
        ("who", "holds") => Show::Holders(words.next()?),
        ("who", "shares") => Show::Shares(words.next()?),
        ("who", "waits") => words.eat("for").and_then(|()| words.next()).map(Show::Waiters)?,
        ("what", "is") => words.eat_all("known of").and_then(|()| words.next()).map(Show::Host)?,
        ("is", "it") => words.eat("grace").map(|()| Show::Grace)?,
        ("which", "notices") => words.eat_all("are owed").map(|()| Show::Notices)?,
        _ => return Err("such a question is not known".into()),
    };
    words.eat("?")?;
    Ok(show)
}

/// Commands of the server, the operator and the clock.
fn institution(words: &mut Words) -> Parsed<Command> {
    match (words.next()?.as_str(), words.next()?.as_str()) {
        ("server", "stops") => Ok(Command::Stop),
        ("server", "starts") => start(false, words),
        ("server", "crashes") if words.eat("and").is_ok() => {
            words.eat("restarts")?;
            start(true, words)
        }
        ("server", "crashes") => Ok(Command::Crash),
        ("store", "is") => words.eat("lost").map(|()| Command::StoreLost),
        ("operator", verb) => wish(verb, words).map(Command::Operator),
        ("server", "has") => {
            words.eat("addresses").and_then(|()| addresses(words)).map(Command::HasAddresses)
        }
        ("store", "stalls") => {
            words.eat("for")?;
            let count = words.number()?;
            Ok(Command::Stall(duration(count, &words.next()?)?))
        }
        ("clock", "jumps") => {
            let back = words.next()? == "back";
            let count = words.number()?;
            Ok(Command::ClockJumps { back, by: duration(count, &words.next()?)? })
        }
        (who, verb) => Err(format!("the {who} does not do {verb:?}")),
    }
}

fn wish(verb: &str, words: &mut Words) -> Parsed<OperatorCommand> {
    Ok(match verb {
        "releases" => {
            words.eat("lock").and_then(|()| words.number()).map(OperatorCommand::Release)?
        }
        "fences" => OperatorCommand::Fence(words.next()?),
        "unfences" => OperatorCommand::Unfence(words.next()?),
        "forgets" => OperatorCommand::Forget(words.next()?),
        "ends" => words.eat("grace").map(|()| OperatorCommand::EndGrace)?,
        "confirms" => {
            words.eat_all("the reboot of")?;
            let host = words.next()?;
            OperatorCommand::ConfirmReboot { host, force: words.eat_all("by force").is_ok() }
        }
        "notifies" => {
            let host = words.next()?;
            match host.parse() {
                Ok(address) => OperatorCommand::NotifyAddress(address),
                Err(_) => words.eat("again").map(|()| OperatorCommand::Renotify(host))?,
            }
        }
        other => return Err(format!("an operator does not do {other:?}")),
    })
}

fn start(crash: bool, words: &mut Words) -> Parsed<Command> {
    let exactness = match words.eat("as") {
        Ok(()) if words.eat("open").is_ok() => Exactness::Open,
        Ok(()) => words.eat("roster").map(|()| Exactness::Roster)?,
        Err(_) => Exactness::Exact,
    };
    let mut settings = Vec::new();
    if words.eat("with").is_ok() {
        settings.push(setting(words)?);
        while words.eat(",").is_ok() {
            settings.push(setting(words)?);
        }
    }
    Ok(Command::Start { crash, exactness, settings })
}

fn setting(words: &mut Words) -> Parsed<Setting> {
    match words.next()?.as_str() {
        "grace" => match words.next()?.as_str() {
            "strict" => Ok(Setting::Grace(GraceMode::Strict)),
            "instant" => Ok(Setting::Grace(GraceMode::Instant)),
            other => Err(format!("grace is not {other:?}")),
        },
        "unreachable" => match words.next()?.as_str() {
            "on-demand" => Ok(Setting::Unreachable(Unreachable::OnDemand)),
            "immediate" => Ok(Setting::Unreachable(Unreachable::Immediate)),
            "retain" => Ok(Setting::Unreachable(Unreachable::Retain)),
            other => Err(format!("unreachable is not {other:?}")),
        },
        "verify" => match words.next()?.as_str() {
            "signs-of-life" => Ok(Setting::Verify(Verify::SignsOfLife)),
            "ask" => Ok(Setting::Verify(Verify::Ask)),
            "address" => Ok(Setting::Verify(Verify::Address)),
            other => Err(format!("verify is not {other:?}")),
        },
        "roaming" => Ok(Setting::Roaming),
        "window" => {
            let protocol = match words.eat("of").and_then(|()| words.next()) {
                Ok(name) => Protocol::new(&name).ok_or(format!("{name:?} is no protocol"))?,
                Err(_) => Protocol::NLM,
            };
            let count = words.number()?;
            Ok(Setting::Window(protocol, duration(count, &words.next()?)?))
        }
        "registrants" => {
            words.eat("window")?;
            let count = words.number()?;
            Ok(Setting::Window(Protocol::NSM, duration(count, &words.next()?)?))
        }
        "at" => {
            words.eat("most")?;
            let count = words.number()? as usize;
            let mut what = words.next()?;
            if words.eat("per").is_ok() {
                what = format!("{what} per {}", words.next()?);
            }
            Ok(Setting::AtMost(count, what))
        }
        "addresses" => Ok(Setting::Addresses(addresses(words)?)),
        "copy" => {
            words.eat("of")?;
            let mut hosts = vec![words.next()?];
            while words.eat("and").is_ok() {
                hosts.push(words.next()?);
            }
            Ok(Setting::Copy(hosts))
        }
        "known" => words.eat("as").and_then(|()| Ok(Setting::KnownAs(bytes(&words.next()?)))),
        address => {
            let address = address.parse().map_err(|_| format!("{address:?} is no setting"))?;
            if words.eat("was").is_ok() {
                return Ok(Setting::Formerly(address, self::address(&words.next()?)?));
            }
            words.eat("is")?;
            Ok(Setting::ReverseName(address, bytes(&words.next()?)))
        }
    }
}

/// One or more, joined by `and`.
fn addresses(words: &mut Words) -> Parsed<BTreeSet<IpAddr>> {
    let mut all = BTreeSet::from([address(&words.next()?)?]);
    while words.eat("and").is_ok() {
        all.insert(address(&words.next()?)?);
    }
    Ok(all)
}

fn address(word: &str) -> Parsed<IpAddr> {
    word.parse().map_err(|_| format!("{word:?} is no address"))
}

fn source(word: String) -> Source {
    word.parse().map_or(Source::Peer(word), Source::Address)
}

pub fn namespace() -> OwnerNamespace {
    OwnerNamespace::new(SERVER_ADDRESS.parse().unwrap(), Transport::Tcp, 4)
}
