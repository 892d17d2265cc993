//! A proxy between a store and its database that can withhold a statement: the client sees its
//! connection end, and the database gets the statement when the test delivers it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Pass,
    /// The next statement is withheld, and its client disconnected.
    Withhold,
    /// The next statement is delivered, and its client disconnected.
    Disconnect,
    /// The next statement is withheld, and its client gets no more data.
    Silence,
}

pub struct Proxy {
    pub port: u16,
    state: Arc<ProxyState>,
}

struct ProxyState {
    mode: Mutex<Mode>,
    withheld: Mutex<Vec<(TcpStream, Vec<u8>)>>,
}

impl Proxy {
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let state =
            Arc::new(ProxyState { mode: Mutex::new(Mode::Pass), withheld: Mutex::default() });
        let proxy = Self { port: listener.local_addr().unwrap().port(), state: Arc::clone(&state) };
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let state = Arc::clone(&state);
                thread::spawn(move || state.forward(client, server));
            }
        });
        proxy
    }

    /// Withholds the next packet that begins with a Bind message.
    pub fn withhold_next(&self) {
        *self.state.mode.lock().unwrap() = Mode::Withhold;
    }

    pub fn silence_at_next(&self) {
        *self.state.mode.lock().unwrap() = Mode::Silence;
    }

    pub fn disconnect_after_next(&self) {
        *self.state.mode.lock().unwrap() = Mode::Disconnect;
    }

    /// Delivers what was withheld, and returns the database's answer.
    pub fn deliver(&self) -> Vec<u8> {
        let (mut server, bytes) = self.state.withheld.lock().unwrap().pop().unwrap();
        server.write_all(&bytes).unwrap();
        server.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        let mut answer = vec![0; 4096];
        let length = server.read(&mut answer).unwrap_or(0);
        answer.truncate(length);
        answer
    }
}

impl ProxyState {
    fn forward(&self, mut client: TcpStream, mut server: TcpStream) {
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
            if mode == Mode::Withhold || mode == Mode::Silence {
                *cut.lock().unwrap() = true;
                let _ = answers.join();
                self.withheld.lock().unwrap().push((server, bytes.to_vec()));
                // Drops further data until the client disconnects.
                while mode == Mode::Silence && matches!(client.read(&mut buffer), Ok(1..)) {}
                let _ = client.shutdown(Shutdown::Both);
                return;
            }
            if mode == Mode::Disconnect {
                // First, so that no answer to it gets through.
                *cut.lock().unwrap() = true;
                let _ = answers.join();
                let _ = server.write_all(bytes);
                // The database's end stays open: it has not noticed.
                self.withheld.lock().unwrap().push((server, Vec::new()));
                let _ = client.shutdown(Shutdown::Both);
                return;
            }
            if server.write_all(bytes).is_err() {
                break;
            }
        }
        let _ = server.shutdown(Shutdown::Both);
    }
}
