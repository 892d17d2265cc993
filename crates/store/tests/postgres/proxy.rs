//! Something between a store and its server that can keep a statement back: the client sees its
//! connection end, and the server gets the statement whenever the test likes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Pass,
    /// The next statement is kept, and its client cut off.
    Keep,
    /// The next statement is delivered, and its client cut off.
    Cut,
    /// The next statement is kept, and its client hears nothing more.
    Hush,
}

pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    mode: Mutex<Mode>,
    kept: Mutex<Vec<(TcpStream, Vec<u8>)>>,
}

impl Proxy {
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let shared = Arc::new(Shared { mode: Mutex::new(Mode::Pass), kept: Mutex::default() });
        let proxy =
            Self { port: listener.local_addr().unwrap().port(), shared: Arc::clone(&shared) };
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.carry(client, server));
            }
        });
        proxy
    }

    /// The next packet of a client that begins with a Bind message is kept.
    pub fn keep_the_next(&self) {
        *self.shared.mode.lock().unwrap() = Mode::Keep;
    }

    pub fn hush_at_the_next(&self) {
        *self.shared.mode.lock().unwrap() = Mode::Hush;
    }

    pub fn cut_after_the_next(&self) {
        *self.shared.mode.lock().unwrap() = Mode::Cut;
    }

    /// Delivers what was kept, and waits for the server's answer to it, which is given back.
    pub fn deliver(&self) -> Vec<u8> {
        let (mut server, bytes) = self.shared.kept.lock().unwrap().pop().unwrap();
        server.write_all(&bytes).unwrap();
        server.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        let mut answer = vec![0; 4096];
        let length = server.read(&mut answer).unwrap_or(0);
        answer.truncate(length);
        answer
    }
}

impl Shared {
    fn carry(&self, mut client: TcpStream, mut server: TcpStream) {
        let (mut back, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        let mut buffer = vec![0; 1 << 16];
        let cut = Arc::new(Mutex::new(false));
        let is_cut = Arc::clone(&cut);
        let answers = thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            loop {
                if back.set_read_timeout(Some(std::time::Duration::from_millis(20))).is_err() {
                    return;
                }
                match back.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(length) if to.write_all(&buffer[..length]).is_err() => break,
                    Ok(_) => {}
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(_) => break,
                }
                if *is_cut.lock().unwrap() {
                    return;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        });
        while let Ok(length @ 1..) = client.read(&mut buffer) {
            let bytes = &buffer[..length];
            let mode = if bytes[0] == b'B' {
                std::mem::replace(&mut *self.mode.lock().unwrap(), Mode::Pass)
            } else {
                Mode::Pass
            };
            if mode == Mode::Keep || mode == Mode::Hush {
                *cut.lock().unwrap() = true;
                let _ = answers.join();
                self.kept.lock().unwrap().push((server, bytes.to_vec()));
                // Whatever else comes is lost, until the client gives up.
                while mode == Mode::Hush && matches!(client.read(&mut buffer), Ok(1..)) {}
                let _ = client.shutdown(Shutdown::Both);
                return;
            }
            if server.write_all(bytes).is_err() {
                break;
            }
            if mode == Mode::Cut {
                *cut.lock().unwrap() = true;
                let _ = answers.join();
                // The server's end stays open: it has not noticed anything.
                self.kept.lock().unwrap().push((server, Vec::new()));
                let _ = client.shutdown(Shutdown::Both);
                return;
            }
        }
        let _ = server.shutdown(Shutdown::Both);
    }
}
