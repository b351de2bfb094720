//! The part of tokio's watch channel that flights use, on the scheduler's primitives.

use std::sync::Arc;
use std::task::{Poll, Waker};

use shuttle::sync::Mutex;

#[derive(Debug)]
struct Shared<T> {
    value: T,
    closed: bool,
    wakers: Vec<Waker>,
}

#[derive(Debug)]
pub struct Sender<T>(Arc<Mutex<Shared<T>>>);

#[derive(Debug)]
pub struct Receiver<T>(Arc<Mutex<Shared<T>>>);

#[derive(Debug)]
pub struct Closed;

pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Mutex::new(Shared { value, closed: false, wakers: Vec::new() }));
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> Sender<T> {
    pub fn send_replace(&self, value: T) -> T {
        let mut shared = self.0.lock().unwrap();
        shared.wakers.drain(..).for_each(Waker::wake);
        std::mem::replace(&mut shared.value, value)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut shared = self.0.lock().unwrap();
        shared.closed = true;
        shared.wakers.drain(..).for_each(Waker::wake);
    }
}

impl<T: Clone> Receiver<T> {
    pub async fn wait_for(&mut self, mut enough: impl FnMut(&T) -> bool) -> Result<T, Closed> {
        std::future::poll_fn(|cx| {
            let mut shared = self.0.lock().unwrap();
            if enough(&shared.value) {
                return Poll::Ready(Ok(shared.value.clone()));
            }
            if shared.closed {
                return Poll::Ready(Err(Closed));
            }
            shared.wakers.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
